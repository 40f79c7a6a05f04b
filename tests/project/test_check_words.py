"""`scripts/check_words.py`: which texts it refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "check_words.py"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("src/whet/a.py", "# Whoever calls this\n", "src/whet/a.py:1: 'Whoever'"),
        ("docs/page.md", "fine\nwho waits for whom\n", "docs/page.md:2: 'whom'"),
        ("README.md", "see `src/whet/rl/judge.py`\n", "README.md:1: 'judge.py' is now 'group.py'"),
        ("docs/page.md", "The run goes on with step 3.\n", "docs/page.md:1: 'goes on with'"),
        ("src/whet/a.py", "class A:\n    place: int\n\nfound = 1\n", "src/whet/a.py:4: 'found' says nothing"),
        ("src/whet/a.py", "order = sorted([], key=lambda place: place)\n", "src/whet/a.py:1: 'place' says nothing"),
        ("src/whet/rl/loop/stream.py", "", "src/whet/rl/loop/stream.py: 'stream.py' says little"),
    ],
)
def test_refused_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    spec = importlib.util.spec_from_file_location("check_words", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for folder in script.TEXTS:
        if not folder.endswith(".md"):
            (tmp_path / folder).mkdir()
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / page).write_text("fine: judge_rubric.py, somebody_else\n", encoding="utf-8")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    assert script.main() == 0
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert script.main() == 1
    assert capsys.readouterr().out.startswith(said)
