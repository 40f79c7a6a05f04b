"""Files that a browser gets: whose they are, and that none of them needs what the content security policy forbids."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import whet.display.page

FOLDER = Path(whet.display.page.__file__).parent
VENDOR = FOLDER / "static" / "vendor"
OWN = sorted([*(FOLDER / "static").glob("*.js"), *(FOLDER / "static").glob("*.css")])
TEMPLATES = sorted(path for path in FOLDER.parents[1].rglob("templates/**/*.html") if "authoring" not in path.parts)


def test_files_of_others_are_those_of_the_list_with_their_licences() -> None:
    rows = re.findall(
        r"^\| `(\S+)` \| .* \(`(\S+)`\) \| `(\w{64})` \|$", (VENDOR / "README.md").read_text(), re.MULTILINE
    )
    for name, licence, digest in rows:
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
        assert (VENDOR / licence).read_text().strip()
    listed = {VENDOR / name for row in rows for name in row[:2]}
    assert {path for path in VENDOR.rglob("*") if path.is_file()} == {*listed, VENDOR / "README.md"}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_templates_have_no_inline_script_or_style_and_escape_everything(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"<script(?![^>]* src=)", text)
    assert not re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:", text)
    assert not re.findall(r"\|\s*safe\b|autoescape\s+false", text)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_scripts_set_text_as_text_and_make_no_code(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc", text)
    assert not re.findall(r"https?://(?!www\.w3\.org)", text)
    assert max(map(len, text.splitlines())) <= 160
