"""A process that starts a server and waits: `parent.py ARGUMENTS`, those of `VllmServer` as JSON.

It prints the server's number when the server answers, or why it does not.
"""

import asyncio
import json
import signal
import sys
from pathlib import Path

from whet.errors import EngineError
from whet.inference.vllm.server import VllmServer


async def main() -> None:
    arguments = json.loads(sys.argv[1])
    names = ("model", "directory", "python", "extension")
    paths = {name: Path(arguments.pop(name)) for name in names if name in arguments}
    server = VllmServer(**paths, name="engine-0", **arguments)
    server.start()
    try:
        await server.ready()
    except EngineError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return
    print(json.dumps({"server": server.pid}), flush=True)
    await asyncio.Event().wait()


signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with Ctrl-C ignored
asyncio.run(main())
