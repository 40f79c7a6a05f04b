"""Rollouts for other programs: as Markdown, in a file, on the clipboard of the user's terminal (OSC 52).

Text of a model or an environment is kept as it is, except that characters that could control a terminal or reorder a
line are written as escapes (`\\x1b`); in Markdown every message is in a fence that its text cannot close.
"""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from whet.errors import RunError
from whet.records.rollout_text import pieces
from whet.records.store import Store
from whet.system.files import expanded

LONGEST = 74_994
"""Characters of base64 that terminals take at most: xterm's limit, which others have copied."""
WITHOUT = {"linux", "dumb", "vt100", "vt220"}
"""Values of TERM of terminals that have no clipboard."""
_FACTS = ("environment", "example_id", "reward", "advantage", "stop_condition", "is_truncated", "answer")


def markdown(row: Mapping[str, Any]) -> str:
    """A rollout: facts as a list, then every message under a heading."""
    blocks = ["# Rollout", "\n".join(f"- {name}: {_code(value)}" for name, value in _facts(row))]
    for title, text in _parts(row):
        blocks += [f"## {title}", _fenced(text)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def visible(text: str, *, lines: bool = False) -> str:
    """`text` with escapes for invisible characters; on one line, or with `lines` on its own lines."""
    kept = "\n\t" if lines else ""
    text = text.replace("\r\n", "\n") if lines else text
    return "".join(one if one.isprintable() or one in kept else _escape(one) for one in text)


def _escape(character: str) -> str:
    code = ord(character)
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(character)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _facts(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in _FACTS:
        if row.get(name) is not None:
            yield name, _written(row[name])
    metrics = row.get("metrics")
    for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
        yield f"metric {_name(str(name))}", _written(value)
    error = row.get("error")
    if error is not None:
        chain = error.get("error_chain_repr") if isinstance(error, Mapping) else None
        yield "error", _written(chain if chain is not None else error)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _parts(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(title, text) of every message, its reasoning and its tool calls, in order."""
    said, role = pieces(row), ""
    for at, piece in enumerate(said):
        if piece.begins:
            role = _name(piece.title)
            if piece.text or at + 1 == len(said) or said[at + 1].begins:
                yield role, piece.text
        elif piece.folded:
            yield f"{role}, {piece.title}", piece.text
        else:
            yield f"{role} calls {_name(piece.title.removeprefix('calls '))}", piece.text


def _fenced(text: str) -> str:
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{visible(text, lines=True)}\n{fence}"


def _name(text: str) -> str:
    """A name in Markdown: as it is where it is a plain word."""
    return text if re.fullmatch(r"[\w -]+", text) else _code(text)


def _code(text: str) -> str:
    """`text` as inline code, whatever backticks are in it."""
    shown = visible(text)
    longest = max(map(len, re.findall(r"`+", shown)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def suggested_name(store: Store, numbers: Sequence[int]) -> str:
    """A name for the file of these rollouts, of characters that every file system takes; one is for people to read."""
    what, form = (f"rollout-{numbers[0] + 1}", "md") if len(numbers) == 1 else ("rollouts", "jsonl")
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{Path(store.source.path).stem}-{what}").strip("-.") + f".{form}"


def save(
    store: Store,
    numbers: Sequence[int],
    path: Path,
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[int, int]:
    """Write these rollouts to a new file; (how many there are in it, how many lines were no rollouts and left out).

    The ending of its name says how: as Markdown (.md), or as the lines of the results (.jsonl). The file appears once
    all is written, and not at all where `stopped` returns true. Raises `RunError` for a file that exists, for another
    ending, and where it cannot be written.
    """
    path = expanded(path)
    if path.suffix not in (".md", ".jsonl"):
        raise RunError(f"{path}: give a name that ends in .md (for people) or in .jsonl (the lines of the results).")
    if path.exists():
        raise RunError(f"{path} exists already; give another name.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    written = left_out = 0
    try:
        with partial.open("x", encoding="utf-8", errors="backslashreplace") as file:
            for number in numbers:
                if stopped():
                    return 0, 0
                if store.head(number).problem is not None:
                    left_out += 1
                    continue
                file.writelines(_text(store, number, path.suffix, first=written == 0))
                written += 1
        os.replace(partial, path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}).") from error
    finally:
        partial.unlink(missing_ok=True)
    return written, left_out


def _text(store: Store, number: int, suffix: str, *, first: bool) -> Iterator[str]:
    if suffix == ".jsonl":
        yield store.text(number, store.head(number).size) + "\n"
        return
    if not first:
        yield "\n---\n\n"
    yield markdown(store.row(number))


def why_not(text: str, environment: Mapping[str, str]) -> str | None:
    """Why this text cannot be sent to the clipboard of this terminal; None where it can."""
    if environment.get("TERM", "") in WITHOUT or environment.get("TERM_PROGRAM") == "Apple_Terminal":
        return "this terminal has no clipboard for programs"
    if len(base64.b64encode(text.encode("utf-8", "replace"))) > LONGEST:
        return "too long for a terminal's clipboard"
    return None


def save_instead(text: str, suffix: str = ".md") -> Path:
    """Write the text to a new file that only its owner can read."""
    descriptor, name = tempfile.mkstemp(prefix="whet-", suffix=suffix)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    return Path(name)
