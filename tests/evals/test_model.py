"""Models that are missing: the error says what can be given instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from whet.errors import ModelLoadError
from whet.evals.config import EvalConfig
from whet.evals.model import check_models

ENDPOINTS = """
[[endpoint]]
endpoint_id = "mini"
model = "gpt-4.1-mini"
url = "https://api.openai.com/v1"

[[endpoint]]
endpoint_id = "large"
model = "gpt-4.1"
url = "https://api.openai.com/v1"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def message_for(model: str) -> str:
    with pytest.raises(ModelLoadError) as caught:
        check_models([EvalConfig(environment="reverse-text", model=model)])
    return str(caught.value)


def write_endpoints() -> None:
    Path("configs").mkdir()
    Path("configs/endpoints.toml").write_text(ENDPOINTS)


def test_a_missing_model_names_the_url_option_and_the_endpoints_file() -> None:
    message = message_for("gpt-4.1-nano")
    assert "no model directory 'gpt-4.1-nano'" in message
    assert message.endswith("give the endpoint's URL with -b, or add it to configs/endpoints.toml.")


def test_the_short_names_of_the_endpoints_file_are_listed() -> None:
    write_endpoints()
    assert message_for("gpt-4.1-nano").endswith("or a short name from configs/endpoints.toml: -m mini or large.")


def test_the_short_name_of_the_same_model_is_proposed() -> None:
    write_endpoints()
    assert message_for("gpt-4.1-mini").endswith("or a short name from configs/endpoints.toml: -m mini.")


def test_a_directory_without_a_model_is_no_endpoint() -> None:
    Path("folder").mkdir()
    assert message_for("./folder") == "folder is not a model directory: it has no config.json"
