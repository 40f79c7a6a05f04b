"""The diagnoses that the guide to training shows are those of the runs it describes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from whet.cli.main import main
from whet.rl.doctor.rules import EXPLAINED_BY, RULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "guides" / "train.md").read_text()
SHOWN = re.findall(
    r"```console\n(\$ whet train run [^\n]*)\n\$ (whet doctor [^\n]*)\n```\n\n```text\n(.*?)```", PAGE, re.DOTALL
)


@pytest.mark.long
@pytest.mark.parametrize(("train", "doctor", "shown"), SHOWN, ids=[doctor for _, doctor, _ in SHOWN])
def test_what_the_doctor_says_in_the_guide_is_what_it_says(
    train: str,
    doctor: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    config = re.search(r'```toml title="reverse.toml"\n(.*?)```', PAGE, re.DOTALL)
    assert config is not None
    Path("reverse.toml").write_text(config[1])
    assert main(shlex.split(train)[2:]) == 0
    capsys.readouterr()
    assert main(shlex.split(doctor)[1:]) == int("\nerror " in shown)
    assert capsys.readouterr().out == shown


def test_the_guide_shows_two_diagnoses_and_names_every_finding() -> None:
    assert len(SHOWN) == 2
    assert RULES.keys() | EXPLAINED_BY.keys() <= set(re.findall(r"`([\w-]+)`", PAGE))
