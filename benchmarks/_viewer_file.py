"""An evaluation of realistic rollouts on disk, for `viewer.py`: seeded, written as `whet eval run` writes them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from whet.records.directory import METADATA, RESULTS

ROLLOUTS_PER_EXAMPLE = 8
RARE = "sesquipedalian"  # in one rollout of a thousand
FOREIGN = "Überprüfung"  # in one of a hundred, sometimes in lower case
_SYLLABLES = ("ka", "lo", "mi", "ren", "tu", "sha", "vel", "or", "an", "is", "the", "de", "con", "pro", "ta", "lin")
_FOREIGN_TEXTS = ("Die Überprüfung ergibt 12.", "überprüfung der Zwischenergebnisse 😀", "答案是十二。", "Ответ: 12.")
_ERRORS = ("ModelError", "ToolCallError", "SandboxError")


def make_evaluation(directory: Path, rollouts: int, size: int, seed: int = 0) -> Path:
    """Write about `size` bytes of `rollouts` rollouts and their metadata; returns the results file.

    Lengths are heavy-tailed, a third uses tools, a quarter has reasoning, one in fifty failed.
    """
    draw = random.Random(seed)
    words = ["".join(draw.choices(_SYLLABLES, k=draw.choice((1, 1, 2, 2, 3)))) for _ in range(4000)]
    texts = [" ".join(draw.choices(words, k=200)) for _ in range(500)]
    directory.mkdir(parents=True)
    path = directory / RESULTS
    characters = (size / rollouts - 1000) * 1.06  # the rest of a row is not text
    with path.open("w", encoding="utf-8") as file:
        for number in range(rollouts):
            file.write(json.dumps(_row(draw, texts, number, characters)) + "\n")
    metadata = {
        "env_id": "benchmark",
        "model": "scripted",
        "num_examples": rollouts // ROLLOUTS_PER_EXAMPLE,
        "rollouts_per_example": ROLLOUTS_PER_EXAMPLE,
        "date": "2026-01-01T00:00:00",
        "avg_reward": 0.5,
    }
    (directory / METADATA).write_text(json.dumps(metadata), encoding="utf-8")
    return path


def _row(draw: random.Random, texts: list[str], number: int, characters: float) -> dict[str, Any]:
    question = f"Question {number // ROLLOUTS_PER_EXAMPLE}: {_text(draw, texts, 300)}"
    turns = draw.choice((1, 1, 1, 2, 3, 4))
    length = min(draw.lognormvariate(0, 0.8) / 1.377, 12) * characters / turns
    completion: list[dict[str, Any]] = []
    for turn in range(turns):
        message: dict[str, Any] = {"role": "assistant", "content": _text(draw, texts, length / 2)}
        if draw.random() < 0.25:
            message["reasoning_content"] = _text(draw, texts, length / 2)
        if turn < turns - 1:
            call = {"id": f"call_{turn}", "name": "search", "arguments": json.dumps({"query": _text(draw, texts, 40)})}
            message["tool_calls"] = [json.dumps(call)]
        completion.append(message)
        if turn < turns - 1:
            completion.append(
                {"role": "tool", "tool_call_id": f"call_{turn}", "content": _text(draw, texts, length / 3)}
            )
    if number % 1000 == 17:
        completion[-1]["content"] += f" {RARE}"
    if number % 25 == 3:
        completion[-1]["content"] += f" {_FOREIGN_TEXTS[number // 25 % len(_FOREIGN_TEXTS)]}"
    seconds = draw.expovariate(0.1)
    reward = draw.choice((0.0, 1.0, draw.random()))
    metrics = {"correct": float(reward == 1), "num_turns": float(turns)}
    error = draw.choice(_ERRORS) if draw.random() < 0.02 else None
    span = {"start": 1.8e9, "end": 1.8e9 + seconds, "duration": seconds}
    return {
        "example_id": number // ROLLOUTS_PER_EXAMPLE,
        "prompt": [{"role": "system", "content": texts[0][:400]}, {"role": "user", "content": question}],
        "completion": completion,
        "reward": reward,
        "timing": {"start_time": 1.8e9, "setup": span, "generation": span, "scoring": span, "total": seconds},
        "is_completed": True,
        "is_truncated": draw.random() < 0.05,
        "stop_condition": draw.choice(("max_turns_reached", "no_tools_called")),
        "metrics": metrics,
        "error": error and {"error": error, "error_chain_repr": f"{error}('it broke')", "error_chain_str": error},
        "tool_defs": [],
        "answer": str(draw.randrange(1000)),
        "token_usage": {"input_tokens": length // 3, "output_tokens": length // 4},
        **metrics,
    }


def _text(draw: random.Random, texts: list[str], length: float) -> str:
    """Words, about `length` characters of them."""
    pieces: list[str] = []
    while length > 0:
        piece = draw.choice(texts)
        start = draw.randrange(len(piece) // 2)
        pieces.append(piece[start : start + int(length) + 1])
        length -= len(pieces[-1])
    return "\n".join(pieces)
