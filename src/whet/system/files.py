"""Files that survive a kill at any moment: whole or absent when replaced, repaired when appended to.

JSON here is always valid JSON (a number that is not finite becomes null) and always ASCII, so that no text a model can
produce (lone surrogates, line separators) breaks a line or a file. The caller defines what the lines mean. Secrets that
are known are taken out of every line.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from whet.errors import RunError
from whet.parsing import parse_json
from whet.system.redaction import KNOWN
from whet.system.untrusted import open_path


def expanded(path: str | Path) -> Path:
    """With the home directory for `~` or `~user`; as it is where the user is not known, and so reported as missing."""
    return Path(os.path.expanduser(path))


def json_line(value: Any, default: Callable[[Any], Any] | None = None, *, ascii: bool = True) -> str:
    """`value` on one line, with its newline. What JSON does not know goes through `default`, or is written as text.

    Secrets that this process knows are replaced by their names (`system/redaction.py`).
    """
    line = exact_json_line(value, default, ascii=ascii)
    if not KNOWN.in_json(line):
        return line
    return exact_json_line(KNOWN.data(json.loads(line)), ascii=ascii)


def exact_json_line(value: Any, default: Callable[[Any], Any] | None = None, *, ascii: bool = True) -> str:
    """The same, secrets included."""
    plain = default or _as_text
    try:
        return json.dumps(value, allow_nan=False, default=plain, ensure_ascii=ascii) + "\n"
    except ValueError:  # a NaN or an infinity somewhere inside: rare, so only then is the value walked
        finite = json.dumps(
            _finite(value), allow_nan=False, default=lambda item: _finite(plain(item)), ensure_ascii=ascii
        )
        return finite + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _as_text(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump()
    item = getattr(value, "item", None)  # a NumPy scalar
    if item is not None and getattr(value, "ndim", None) == 0:
        return item()
    return str(value)


def write_whole(path: Path, content: str | bytes, *, durable: bool = True, private: bool = False) -> None:
    """Replace `path`: a reader sees the old file or the whole new one. `durable` also survives a loss of power.

    What is `private` can be read by no other user, at no moment.
    """
    data = content.encode() if isinstance(content, str) else content
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if private:
            aside.unlink(missing_ok=True)
        with open(aside, "wb", opener=partial(os.open, mode=0o600 if private else 0o666)) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        error.filename = str(path)  # write() and fsync() do not say where
        raise


def user_cache(name: str) -> Path:
    """The folder of whet's cache for `name`: below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "whet" / name


def sync(path: Path) -> None:
    """Make a file, or new and renamed files of a directory, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LineFile:
    """A file of JSON lines that grows. A torn last line, left by a kill, is cut off when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_torn_line(path)

    def append(self, rows: Iterable[Any], *, durable: bool = True) -> None:
        """All rows reach the disk, or none; killed meanwhile, the first few whole and at most one torn.

        What is not `durable` may be gone after a loss of power.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab") as file:
                file.write("".join(map(json_line, rows)).encode())
                file.flush()
                if durable:
                    os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, size)
            error.filename = str(self.path)
            raise

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Drop every row that is not wanted; nothing is written when nothing is dropped."""
        if not self.path.exists():
            return
        rows = list(read_lines(self.path))
        kept = [row for row in rows if wanted(row)]
        if len(kept) < len(rows):
            write_whole(self.path, "".join(map(json_line, kept)))


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last newline."""
    try:
        with path.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            if (whole := _end_of_last_line(file, end)) < end:
                file.truncate(whole)
    except FileNotFoundError:
        return


def count_lines(path: Path) -> int:
    """Whole lines of a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _end_of_last_line(file: BinaryIO, end: int, block: int = 1 << 16) -> int:
    position = end
    while position > 0:
        start = max(0, position - block)
        file.seek(start)
        newline = file.read(position - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        position = start
    return 0


def read_lines(path: Path, ends: int | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a file of JSON lines without a torn last one. Raises `RunError` naming a line that is not JSON.

    Args:
        ends: bytes; of a larger file only the rows in so many at its beginning and as many at its end.
    """
    with open_path(path) as file:
        left_out = 0 if ends is None else os.fstat(file.fileno()).st_size - 2 * ends
        position = 0
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = parse_json(line)
            except ValueError as error:
                raise RunError(
                    f"{path}, {_line(number, left_out)}: not JSON ({error}). Remove the line, or restore the file."
                ) from None
            if not isinstance(row, dict):
                kind = type(row).__name__
                raise RunError(f"{path}, {_line(number, left_out)}: expected an object, found {kind}.")
            yield row
            position += len(line)
            if ends is not None and left_out > 0 and position >= ends:
                file.seek(max(position - 1, ends + left_out))
                file.readline()
                left_out = -1


def _line(number: int, left_out: int) -> str:
    return f"line {number}" if left_out >= 0 else "near its end"


def replace_directory(target: Path, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a temporary directory, then replace `target` with it; returns `target`."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        write(aside)
        if target.exists():
            shutil.rmtree(target)
        os.replace(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target
