"""Whose tokenizer gives the tokens of a run their text."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from whet.errors import ModelLoadError
from whet.models.tiny import path as tiny
from whet.viewer.decoding import load_decode
from whet.viewer.sources import Source


def test_the_tokenizer_in_the_run_comes_first_and_then_its_model_s(tmp_path: Path) -> None:
    source = Source(tmp_path, "training", tmp_path / "rollouts", model="nobody/has-this")
    with pytest.raises(ModelLoadError, match="not on this machine"):
        load_decode(source)
    shutil.copytree(tiny(), tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    assert "".join(load_decode(source)([85, 66, 88])) == "vcy"
