"""Rollouts written to a file: one, or all that are listed; as Markdown, or as the lines they are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from whet.errors import RunError
from whet.viewer.export import markdown
from whet.viewer.store import Store

Form = Literal["md", "jsonl"]
STEP = 50  # rollouts between two reports


def suggested_name(store: Store, number: int | None, form: Form) -> str:
    """A name for the file, of letters that every file system takes; `number` is None for a list."""
    source = store.source
    words = [Path(source.path).stem, "rollouts" if number is None else f"rollout-{number + 1}"]
    return re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words)).strip("-.") + f".{form}"


def save(
    store: Store,
    numbers: Sequence[int],
    form: Form,
    path: Path,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    stopped: Callable[[], bool] = lambda: False,
) -> tuple[int, int]:
    """Write these rollouts to a new file; (how many there are in it, how many lines were no rollouts and left out).

    The file is there when all is written and never before; where `stopped` says so there is none. Raises `RunError`
    for a file that exists, and where it cannot be written.
    """
    path = path.expanduser()
    if path.exists():
        raise RunError(f"{path} exists already; give another name.")
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    written = left_out = 0
    try:
        with aside.open("x", encoding="utf-8", errors="backslashreplace") as file:
            for at, number in enumerate(numbers):
                if stopped():
                    return 0, 0
                if at % STEP == 0:
                    on_progress(at, len(numbers))
                if store.head(number).problem is not None:
                    left_out += 1
                    continue
                file.writelines(_text(store, number, form, first=written == 0))
                written += 1
        os.replace(aside, path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}).") from error
    except IndexError:
        raise RunError("the file was replaced meanwhile; nothing is written.") from None
    finally:
        aside.unlink(missing_ok=True)
    return written, left_out


def _text(store: Store, number: int, form: Form, *, first: bool) -> Iterator[str]:
    if form == "jsonl":
        yield store.text(number, store.head(number).size) + "\n"
        return
    if not first:
        yield "\n---\n\n"
    yield markdown(store.row(number))
