"""Full-text search: whatever way the text is written in the file, and nothing that is not in a message."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import whet.records.search as search_module
from whet.errors import RunError
from whet.records.store import Store, open_store


def message(text: Any) -> dict[str, Any]:
    return {"completion": [{"role": "assistant", "content": text}]}


def found(store: Store, text: str, within: list[int] | None = None) -> list[int]:
    numbers: list[int] = []
    for progress in store.search(text, within):
        numbers = progress.numbers
    return numbers


def stored(folder: Path, *lines: str | dict[str, Any]) -> Store:
    folder.mkdir(exist_ok=True)
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "results.jsonl").write_text(text, encoding="utf-8")
    store = open_store(folder)
    store.poll(float("inf"))
    return store


def ascii_only(value: Any) -> str:
    return json.dumps(value)


def as_it_is(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def slashes_escaped(value: Any) -> str:
    return json.dumps(value).replace("/", "\\/")


def all_escaped(value: Any) -> str:
    """As no usual writer has it: every character of a text as an escape, in upper-case digits."""
    units = value["completion"][0]["content"].encode("utf-16-be")
    escapes = "".join(f"\\u{units[at]:02X}{units[at + 1]:02X}" for at in range(0, len(units), 2))
    return '{"completion": [{"role": "assistant", "content": "%s"}]}' % escapes  # noqa: UP031  braces


ALPHABET = 'aAbBkéÉüÜßяЯ答案😀🎉"\\/ \n\t<&0'
WORDS = st.text(ALPHABET, max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    texts=st.lists(WORDS, min_size=1, max_size=8),
    query=st.text(ALPHABET, min_size=1, max_size=3),
    writer=st.sampled_from([ascii_only, as_it_is, slashes_escaped, all_escaped]),
)
def test_it_finds_what_a_search_in_the_texts_finds(texts: list[str], query: str, writer: Any) -> None:
    texts = [*texts, texts[0] + query.swapcase() + texts[-1]]
    with tempfile.TemporaryDirectory() as folder:
        store = stored(Path(folder) / "a", *(writer(message(text)) for text in texts))
        # ß has no upper case of one letter, so lower() tells letters of this alphabet apart as the search does.
        assert found(store, query) == [n for n, text in enumerate(texts) if query.lower() in text.lower()]


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("ÜBER", message("über alles")),
        ("über", message("ÜBER ALLES")),
        ("hello world", message("Hello World")),
        ("reason", {"completion": [{"role": "assistant", "content": "", "reasoning_content": "a REASON"}]}),
        ("second part", message([{"type": "text", "text": "first"}, {"type": "text", "text": "second part"}])),
        ("asked", {"prompt": [{"role": "user", "content": "asked"}]}),
        ("plain", {"prompt": "plain text"}),
        ("42", {"answer": "42"}),
        ("broke", {"error": {"error": "ToolError", "error_chain_repr": "ToolError('broke')"}}),
    ],
)
def test_what_a_person_reads_of_a_rollout_is_searched(tmp_path: Path, text: str, row: dict[str, Any]) -> None:
    assert found(stored(tmp_path, message("no"), row), text) == [1]


@pytest.mark.parametrize("text", ["search_web", "café", '"query"', "naïve", "a/b"])
@pytest.mark.parametrize("escaped", [True, False])
def test_tool_calls_are_searched_as_the_model_meant_them(tmp_path: Path, text: str, escaped: bool) -> None:
    arguments = json.dumps({"query": "Café naïve a/b"}, ensure_ascii=escaped)
    call = {"id": "1", "name": "search_web", "arguments": arguments}
    shapes = [json.dumps(call), call, {"id": "1", "type": "function", "function": call}]
    rows = [{"completion": [{"role": "assistant", "content": "", "tool_calls": [shape]}]} for shape in shapes]
    assert found(stored(tmp_path, *rows, message("no")), text) == [0, 1, 2]


@pytest.mark.parametrize("text", ["completion", "assistant", "role", "reward", "max_turns", "0.25"])
def test_what_nobody_wrote_is_not_found(tmp_path: Path, text: str) -> None:
    row = {**message("hello"), "reward": 0.25, "stop_condition": "max_turns", "metrics": {"reward": 0.25}}
    assert found(stored(tmp_path, row), text) == []


def test_only_what_is_asked_for_is_searched(tmp_path: Path) -> None:
    store = stored(tmp_path, *(message(f"x{number % 2}") for number in range(10)))
    assert found(store, "x1", within=[9, 2, 3, 1]) == [1, 3, 9]
    assert found(store, "x1", within=[]) == []


def test_progress_is_reported_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "PIECE", 200)
    store = stored(tmp_path, *(message(f"word {number}") for number in range(20)), message("w" * 1000))
    steps = [(progress.done, len(progress.numbers)) for progress in store.search("word")]
    assert len(steps) > 5
    assert steps == sorted(steps)
    assert steps[-1] == (next(store.search("word")).total, 20)


def test_a_search_goes_on_where_it_was_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "PIECE", 100)
    search = stored(tmp_path, *(message("word") for _ in range(6))).search("word")
    first = len(next(search).numbers)
    assert 0 < first < 6
    *_, last = search
    assert last.numbers == list(range(6))


def test_lines_that_are_no_rollouts_are_counted_and_passed_over(tmp_path: Path) -> None:
    store = stored(tmp_path, message("word"), '{"completion": "word', "[1]", message("word"))
    *_, last = store.search("word")
    assert (last.numbers, last.skipped) == ([0, 3], 2)


def test_several_files_of_a_run_are_searched(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "m"\n')
    (tmp_path / "rollouts").mkdir()
    for step in (1, 2, 3):
        lines = "".join(json.dumps(message(f"word {step}")) + "\n" for _ in range(2))
        (tmp_path / "rollouts" / f"step_{step:06}.jsonl").write_text(lines)
    with open_store(tmp_path) as store:
        store.poll(float("inf"))
        assert found(store, "word") == [0, 1, 2, 3, 4, 5]
        assert found(store, "word 2") == [2, 3]


def test_a_file_that_is_cut_while_it_is_searched_is_an_error_in_words(tmp_path: Path) -> None:
    store = stored(tmp_path, message("word"), message("word"))
    search = store.search("word")
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(RunError, match=r"results\.jsonl: the file was changed since it was listed"):
        next(search)


def test_an_empty_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no text"):
        stored(tmp_path, message("x")).search("")
