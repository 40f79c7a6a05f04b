"""Rows of conversations on disk, and the tiny model's renderer."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from scripts.tiny_model.tokenizer import build_tokenizer

from whet.inference.rendering.chat_renderer import ChatRenderer


def chat(number: int) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "user", "content": f"What is {number} plus 1?"},
            {"role": "assistant", "content": f"{number + 1}"},
        ]
    }


@pytest.fixture(scope="session")
def renderer() -> ChatRenderer:
    return ChatRenderer(build_tokenizer())


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    def write(rows: int | Iterable[dict[str, Any]] = 20, name: str = "rows.jsonl") -> Path:
        given = map(chat, range(rows)) if isinstance(rows, int) else rows
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in given))
        return path

    return write
