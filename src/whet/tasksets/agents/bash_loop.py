"""The agent `bash`: a model, a shell, and nothing else. A script of the standard library that runs inside the sandbox.

Each turn is one answer of the model. The commands that it calls the tool `bash` with are run one after the other, with
`--fenced` the first block of its text that is fenced as ```bash, for models that call no tools. An answer without a
command is the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from typing import Any

COMMAND_S = 120.0
SHOWN = 16_000  # characters of a command's output; the middle of a longer one is left out
FENCED = re.compile(r"```(?:bash|sh)\n(.*?)```", re.DOTALL)
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in a bash shell. Files stay from one call to the next.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def answer_to(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    body = {"model": "policy", "messages": messages, **({"tools": tools} if tools else {})}
    headers = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)) as response:
        message: dict[str, Any] = json.load(response)["choices"][0]["message"]
    return message


def run(command: str) -> str:
    """What a command wrote to its output, both streams, and its exit code where that is not 0."""
    with tempfile.TemporaryFile() as output:  # a process that it leaves behind may keep it open
        process = subprocess.Popen(
            ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        size = output.seek(0, os.SEEK_END)
        output.seek(0)
        text = output.read(SHOWN).decode(errors="replace")
        if size > SHOWN:
            output.seek(max(SHOWN, size - SHOWN // 2))
            left_out = output.tell() - SHOWN // 2
            text = f"{text[: SHOWN // 2]}\n[{left_out} bytes left out]\n{output.read().decode(errors='replace')}"
    if code is None:
        return f"{text}\n[ended after {COMMAND_S:g} s]"
    return f"{text}\n[exit code {code}]" if code else text or "[no output]"


def called(call: dict[str, Any]) -> str:
    """The result of one call of the tool."""
    try:
        command = json.loads(call["function"]["arguments"])["command"]
    except (ValueError, KeyError, TypeError, RecursionError):
        command = None
    if call["function"]["name"] != "bash" or not isinstance(command, str) or "\0" in command:
        return 'the only tool is bash, with {"command": "..."}'
    return run(command)


def main(fenced: bool) -> None:
    with open(os.environ["WHET_TASK"]) as file:
        messages: list[dict[str, Any]] = json.load(file)["prompt"]
    while True:
        message = answer_to(messages, [] if fenced else [TOOL])
        messages.append(message)
        if fenced:
            block = FENCED.search(message.get("content") or "")
            results = [{"role": "user", "content": run(block[1].replace("\0", ""))}] if block else []
        else:
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": called(call)}
                for call in message.get("tool_calls") or ()
            ]
        if not results:
            print(message.get("content") or "")
            return
        messages += results


if __name__ == "__main__":
    main("--fenced" in sys.argv[1:])
