"""Right answers of BFCL as conversations to imitate: `python -m bfcl.demonstrations FILE [CATEGORY ...]`.

Of the values that are possible for a parameter the first one is written, and a parameter that may be left out is. A
question whose answer the scoring then refuses is left out and counted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bfcl import correct, make_tasks
from bfcl.scoring import OPTIONAL, name_of_tool


def _plain(value: Any) -> Any:
    """A possible value as an argument: in a dict each key has a list of them."""
    if isinstance(value, dict):
        return {key: _plain(one[0] if isinstance(one, list) and one else one) for key, one in value.items()}
    return [_plain(one) if isinstance(one, dict) else one for one in value] if isinstance(value, list) else value


def demonstrations(categories: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """Rows with `messages` and `tools`, and how many questions were left out.

    Raises ValueError for a category without calls.
    """
    if without := [name for name in categories if name.endswith("relevance")]:
        raise ValueError(f"{without[0]} has no calls to imitate")
    rows, tasks = [], make_tasks(categories, -1)
    for task in tasks:
        calls = []
        for number, answer in enumerate(json.loads(task["info"]["ground_truth"]), 1):
            ((name, possible),) = answer.items()
            arguments = {
                key: _plain(values[0]) for key, values in possible.items() if values and OPTIONAL not in values
            }
            calls.append({"id": str(number), "name": name_of_tool(name), "arguments": json.dumps(arguments)})
        message = {"role": "assistant", "content": "", "tool_calls": calls}
        if correct([message], task["info"]) == 1.0:
            rows.append({"messages": [*task["prompt"], message], "tools": task["info"]["tool_defs"]})
    return rows, len(tasks) - len(rows)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m bfcl.demonstrations FILE [CATEGORY ...]")
    rows, left_out = demonstrations(sys.argv[2:] or ["simple_python"])
    Path(sys.argv[1]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{len(rows)} conversations in {sys.argv[1]}, {left_out} questions left out")
