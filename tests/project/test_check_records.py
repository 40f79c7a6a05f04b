"""`scripts/check_records.py`: what only `records` may do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check_records.py"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("rl/a.py", 'path = run / "metrics.jsonl"\n', "'metrics.jsonl': use its name in whet.records"),
        ("rl/a.py", '"""Reads metrics.jsonl."""\n', None),
        ("records/a.py", 'path = run / "metrics.jsonl"\nfcntl.flock(file, 1)\n', None),
        ("dashboard/a.py", "fcntl.flock(file, fcntl.LOCK_EX)\n", "flock: records/lock.py has the lock"),
        ("hub/a.py", "os.open(path, os.O_NOFOLLOW)\n", "O_NOFOLLOW: system/untrusted.py opens"),
        ("evals/a.py", "again = os.fstat(file).st_ino != inode\n", "st_ino: records/tail.py reads"),
    ],
)
def test_refused_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str | None) -> None:
    spec = importlib.util.spec_from_file_location("check_records", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    monkeypatch.setattr(script, "PACKAGE", tmp_path)
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    found = list(script.problems(path))
    assert len(found) == (said is not None)
    assert all(said is not None and said in line for line in found)
