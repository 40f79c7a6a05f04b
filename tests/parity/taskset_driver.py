"""Run the packages for `verifiers.v1` under one library and write rows and requests, as JSON. Started by the test.

    python taskset_driver.py verifiers|whet FOLDER OUTPUT

Times are left out: the experimental API of 0.1.14 counts them in milliseconds and by other names.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import socket
import sys
from typing import Any

HELD: list[socket.socket] = []
EUROPE = {"region": "all", "config": {"harness": {"max_turns": 4}}}


def runs() -> dict[str, tuple[str, Any, dict[str, Any]]]:
    """By name: package, the model's answers, arguments of `load_environment`."""
    from definitions.case import call, calls

    def librarian(prompt: list[dict[str, Any]], before: int) -> Any:
        if prompt[0]["content"] != "Where is it?":
            return calls(call("pick", {"x": 1}))
        said = sum(message["role"] == "assistant" for message in prompt)
        if said == 1:
            return calls(call("nowhere", {}), call("locate", {"title": "whet"}, id="call-2"))
        return calls(call("locate", {"titel": "x"}) if said == 0 else call("hand_in", {"answer": text_of(prompt)}))

    def text_of(prompt: list[dict[str, Any]]) -> str:
        return prompt[-1]["content"]

    return {
        "typed configs": ("v1_capitals", ["Rome"], EUROPE),
        "a wrong answer": ("v1_capitals", ["Paris"], {"max_turns": 2}),
        "tools": ("v1_library", librarian, {}),
        "a user": ("v1_dialogue", ["a", "b"], {}),
        "a known solution": ("v1_programs", [], {"which": "known_solution"}),
        "the openai client": ("v1_programs", ["42"], {"which": "by_client"}),
    }


async def observe(package: str, answers: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    import verifiers.v1 as vf
    from definitions.case import Script

    if "config" in arguments:
        arguments = {**arguments, "config": vf.EnvConfig(arguments["config"])}
    env = importlib.import_module(package).load_environment(**arguments)
    client = Script(answers)
    results = await env.evaluate(client, "scripted-model", rollouts_per_example=2)
    rows = [{key: value for key, value in row.items() if key != "timing"} for row in results["outputs"]]
    seen = {"rows": rows, "requests": client.requests, "groups": env.requires_group_rollouts}
    await env._teardown()
    return seen


def plain(value: Any) -> Any:
    return value.model_dump(exclude_none=True) if hasattr(value, "model_dump") else repr(value)


def held_port() -> int:
    """A free port, as 0.1.14 asks for one long before it listens there; held, so that nobody else is given it."""
    held = socket.socket()
    HELD.append(held)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("0.0.0.0", 0))
    port: int = held.getsockname()[1]
    return port


def main() -> None:
    library, folder, output = sys.argv[1:]
    if library == "whet":
        import whet

        whet.install_verifiers_alias()
    else:
        import verifiers.v1.utils.endpoint_utils as endpoints

        endpoints.get_free_port = held_port
    sys.path.insert(0, folder)
    with contextlib.redirect_stdout(sys.stderr):
        found = {name: asyncio.run(observe(*run)) for name, run in runs().items()}
    with open(output, "w", encoding="utf-8") as file:
        json.dump(found, file, default=plain, sort_keys=True)


if __name__ == "__main__":
    main()
