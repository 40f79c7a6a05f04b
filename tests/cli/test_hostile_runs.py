"""Folders of runs that hostile code wrote: their text cannot control the terminal, and none hides the others."""

from __future__ import annotations

import ast
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.cli.main import main
from whet.system.console import SafeConsole

SOURCE = Path(whet.__file__).parent
NASTY = "a\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\u202ename\nnext\r"
CONFIG = 'model = "whet/tiny"\nmax_steps = 4\n[[env]]\nid = "reverse-text"\n'


def a_run(folder: Path, name: str, config: str = CONFIG, status: Any = None, metrics: str = "") -> Path:
    run = folder / name
    run.mkdir(parents=True)
    (run / "config.toml").write_text(config)
    if status is not None:
        (run / "status.json").write_text(status if isinstance(status, str) else json.dumps(status))
    (run / "metrics.jsonl").write_text(metrics)
    return run


def harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


HOSTILE: dict[str, dict[str, Any]] = {
    "step": {"status": {"state": "finished", "step": "many"}},
    "steps": {"status": {"state": "finished", "step": [1], "max_steps": {}}},
    "endless": {"status": '{"state": "finished", "step": 1e999}'},
    "time": {"status": {"state": "finished", "ended": "0001-01-01T00:00:00", "step": 1}},
    "deep": {"status": "[" * 100_000},
    "dots": {"config": "a." * 16_000 + "a = 1"},
    "types": {"config": 'max_steps = "x"\nenv = 3\nmodel = [1]\ndata = 4'},
    "rewards": {"metrics": '{"step": 1, "reward/mean": "high"}\n'},
    "huge": {"metrics": '{"step": 1, "reward/mean": ' + "9" * 400 + "}\n"},
    "rows": {"metrics": "[" * 5_000 + "\n"},
    "names": {"config": CONFIG + f"name = {json.dumps(NASTY)}"},
}


def test_one_hostile_run_does_not_hide_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_run(tmp_path, "good", status={"state": "finished", "step": 4}, metrics='{"step": 1, "reward/mean": 0.5}\n')
    for name, files in HOSTILE.items():
        a_run(tmp_path, name, **files)
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "config.toml").write_bytes(b"\xff\xfe")
    os.mkfifo(a_run(tmp_path, "pipe").joinpath("status.json"))
    (tmp_path / "folder" / "config.toml").mkdir(parents=True)
    (a_run(tmp_path, "inner") / "status.json").mkdir()
    assert main(["train", "list", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert harmless(printed)
    assert "0.500" in printed
    for name in ("step", "endless", "deep", "dots", "bytes"):
        assert str(tmp_path / name) in printed
    assert main(["train", "list", str(tmp_path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == len(HOSTILE) + 4


METADATA: dict[str, Any] = {
    "text": {"num_examples": "many"},
    "errors": {"num_errors": [1], "avg_error": "x"},
    "config": {"config": {"environment": 3}},
    "huge": {"num_examples": 10**400, "avg_reward": 10**400},
}


@pytest.mark.parametrize("command", ["eval", "gepa"])
def test_one_hostile_evaluation_or_search_does_not_hide_the_list(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, fields in {"good": {"num_examples": 3}, **METADATA}.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "metadata.json").write_text(json.dumps({"env_id": "reverse-text", "model": "m", **fields}))
        (folder / "results.jsonl").write_text("")
        (folder / "config.toml").write_text(CONFIG)
        (folder / "candidates.jsonl").write_text("")
    (tmp_path / "deep").mkdir()
    for name in ("metadata.json", "results.jsonl", "candidates.jsonl"):
        (tmp_path / "deep" / name).write_text("[" * 100_000)
    assert main([command, "list", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert harmless(printed)
    assert "good" in printed
    assert "nested too deeply" in printed


def test_names_of_metrics_do_not_reach_the_terminal_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"step": step, NASTY: 0.5, **{f"m{n}\x1b[2J": 1.0 for n in range(step * 4)}} for step in (1, 2)]
    run = a_run(tmp_path, "run", status={"state": "finished"}, metrics="".join(json.dumps(row) + "\n" for row in rows))
    for arguments in (["metrics"], ["metrics", NASTY], ["metrics", "nothing\x1b[2J"], ["show"]):
        main(["train", arguments[0], str(run), *arguments[1:]])
        printed = capsys.readouterr()
        assert harmless(printed.out)
        assert harmless(printed.err)
    assert main(["train", "list", f"{tmp_path}/\x1b[2J"]) == 2
    assert harmless(capsys.readouterr().err)


def test_json_in_a_terminal_is_ascii(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path, "run", metrics=json.dumps({"step": 1, NASTY: 0.5}) + "\n")
    for terminal in (False, True):
        monkeypatch.setattr("sys.stdout.isatty", lambda terminal=terminal: terminal)
        assert main(["train", "metrics", str(run), "--json"]) == 0
        printed = capsys.readouterr().out
        assert printed.isascii() == terminal
        assert json.loads(printed)["metrics"][0][NASTY] == 0.5


def test_console_keeps_its_own_control_and_replaces_that_of_texts() -> None:
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, width=80, color_system="standard")
    table = Table(title=NASTY)
    table.add_column(Text(NASTY, "red"))
    table.add_row(Text(f"{NASTY}\tx"))
    console.print(NASTY, Text(NASTY, "bold"), markup=False)
    console.print(table)
    console.show_cursor(False)
    text = out.getvalue()
    assert text.endswith("\x1b[?25l")
    assert "\x1b[1m" in text
    assert not any(mark in text for mark in ("\x1b]52", "\x1b[2J", "\x07", "\x9b", "\u202e", "\r"))


def test_every_console_is_the_safe_one() -> None:
    """But the one that measures text, whose output goes nowhere."""
    makers = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "Console(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Console", "rich.console.Console"):
                makers.add(str(path.relative_to(SOURCE)))
    assert makers == {"display/lines.py"}
