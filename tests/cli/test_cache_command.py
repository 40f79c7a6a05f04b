"""`whet cache`: sizes of what is kept for sandboxes, and removal of what was not used."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from whet.cli.main import main
from whet.envs.sandboxed import packages

DAY = 86_400


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "cache_directory", lambda name="packages": tmp_path / name)
    for name in ("agents/pi/1", "agents/pi/2", "harbor/ab", "packages/cd", "packages/.cd.half"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(b"x" * 100_000)
        os.utime(folder, (0, folder.stat().st_mtime - 40 * DAY))
    (tmp_path / "gguf" / "ef").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "harbor" / "link").symlink_to(tmp_path / "outside")
    return tmp_path


def run(capsys: Any, *words: str) -> list[str]:
    assert main(["cache", *words, "--json"]) == 0
    folders = json.loads(capsys.readouterr().out)["folders"]
    assert all(one["MB"] >= 0.1 for one in folders)
    return ["/".join(Path(one["folder"]).parts[-2:]) for one in folders]


def test_what_was_not_used_is_removed(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def never(fresh: Path) -> None:
        raise AssertionError("it is there")

    asyncio.run(packages.filled(cache / "agents" / "pi" / "2", never, "pi"))  # uses it
    assert run(capsys, "list") == ["pi/1", "pi/2", "harbor/ab", "packages/.cd.half", "packages/cd"]
    assert run(capsys, "prune", "--unused-days", "41") == []
    assert run(capsys, "prune") == ["pi/1", "harbor/ab", "packages/.cd.half", "packages/cd"]
    assert run(capsys, "list") == ["pi/2"]
    assert sorted(path.name for path in cache.rglob("*")) == sorted(
        ["agents", "pi", "2", "file", "harbor", "link", "packages", "gguf", "ef", "outside"]
    )
