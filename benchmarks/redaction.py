"""What taking secrets out of rollout rows costs: `python benchmarks/redaction.py [SECRETS]`.

Both sides in the same run: the row as JSON, and the row as it is written, by processor time.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

from whet.rollouts.row_log import rows_text
from whet.system.files import exact_json_line
from whet.system.redaction import KNOWN

ROWS, ROUNDS, PROMPT, COMPLETION = 64, 25, 500, 1500


def row(draw: random.Random) -> dict[str, Any]:
    """One of 2,000 tokens."""
    ids = [draw.randrange(150_000) for _ in range(PROMPT + COMPLETION)]
    turn = {
        "prompt_start": 0,
        "prompt_ids": ids[:PROMPT],
        "completion_ids": ids[PROMPT:],
        "completion_logprobs": [-draw.random() for _ in range(COMPLETION)],
        "policy_version": [[1, COMPLETION]],
    }
    messages = {"prompt": "one two three " * 90, "completion": "lorem ipsum dolor " * 100}
    return {**{name: [{"role": "user", "content": text}] for name, text in messages.items()}, "turns": [turn]}


def main() -> None:
    draw = random.Random(0)
    secrets = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    rows = [row(draw) for _ in range(ROWS)]
    KNOWN.add({f"SECRET_{number}": f"sk-{draw.randbytes(20).hex()}" for number in range(secrets)})
    best = {"exact": float("inf"), "redacted": float("inf")}
    for _ in range(ROUNDS):
        for name in best:
            began = time.process_time()
            "".join(map(exact_json_line, rows)) if name == "exact" else rows_text(rows)
            best[name] = min(best[name], time.process_time() - began)
    share = best["redacted"] / best["exact"] - 1
    print(f"{secrets} secrets: {1e6 * best['exact'] / ROWS:.0f} us a row, redacted {share:+.1%}")


if __name__ == "__main__":
    main()
