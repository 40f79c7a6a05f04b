"""Wheels and source archives for tests: right ones, and every part of them to make wrong."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

CODE = """
import whet as vf


def load_environment(**kwargs):
    rows = [{"question": f"Say {n}.", "answer": str(n)} for n in range(16)]

    def right(completion, answer, **_):
        return 1.0 if completion[-1]["content"].strip() == answer else 0.0

    return vf.SingleTurnEnv(dataset=rows[:8], eval_dataset=rows[8:], rubric=vf.Rubric(funcs=[right]))
"""


def digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def metadata(name: str, version: str, more: str = "", readme: str = "# A game\n\nOf words.\n") -> bytes:
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: A game of words\n"
    return (head + more + "Description-Content-Type: text/markdown\n\n" + readme).encode()


@dataclass
class Wheel:
    """A wheel before it is written; `bytes()` makes its RECORD, unless it is given."""

    name: str = "word-game"
    version: str = "1.0.0"
    code: str = CODE
    more: str = ""  # of METADATA
    readme: str = "# A game\n\nOf words.\n"
    tag: str = "py3-none-any"
    files: dict[str, bytes] = field(default_factory=dict)  # further ones, or others in place of the usual
    without: tuple[str, ...] = ()
    edit: Callable[[zipfile.ZipFile], None] = lambda archive: None  # writes further entries, past RECORD

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")

    @property
    def info(self) -> str:
        return f"{self.module}-{self.version}.dist-info"

    @property
    def filename(self) -> str:
        return f"{self.module}-{self.version}-{self.tag}.whl"

    def contents(self) -> dict[str, bytes]:
        found = {
            f"{self.module}.py": self.code.encode(),
            f"{self.info}/METADATA": metadata(self.name, self.version, self.more, self.readme),
            f"{self.info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {self.tag}\n".encode(),
        }
        found.update(self.files)
        for name in self.without:
            found.pop(name, None)
        record = f"{self.info}/RECORD"
        if record not in found and record not in self.without:
            lines = [f"{name},{digest(data)},{len(data)}\n" for name, data in found.items()]
            found[record] = ("".join(lines) + f"{record},,\n").encode()
        return found

    def bytes(self, method: int = zipfile.ZIP_DEFLATED) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", method) as archive:
            for name, data in self.contents().items():
                archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), data, method)
            self.edit(archive)
        return stream.getvalue()


def sdist(
    name: str = "word-game",
    version: str = "1.0.0",
    files: Mapping[str, bytes] | None = None,
    members: tuple[tarfile.TarInfo, ...] = (),
    format: int = tarfile.PAX_FORMAT,
) -> bytes:
    """A source archive; `files` are further ones inside its folder, `members` are written as they are."""
    top = f"{name.replace('-', '_')}-{version}"
    contents = {
        "PKG-INFO": metadata(name, version),
        "pyproject.toml": b'[project]\nname = "word-game"\n',
        f"{name.replace('-', '_')}.py": CODE.encode(),
        **(files or {}),
    }
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=format) as archive:
        for inside, data in contents.items():
            member = tarfile.TarInfo(f"{top}/{inside}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in members:
            archive.addfile(member, io.BytesIO(b"\0" * member.size))
    return gzip.compress(stream.getvalue(), mtime=0)
