"""An adapter or a whole model of any checkpoint is made when it is downloaded, and nothing of that is left."""

from __future__ import annotations

import json
import shutil
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def database_url() -> None:
    """SQLite: what is looked at is files."""


def archive(service: Any, run: str, step: int, what: str, folder: Path) -> Path:
    """What is downloaded, unpacked."""
    answer = service.hub.ask("GET", f"/runs/{run}/checkpoints/{step}/archive?what={what}", "ann")
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == int(answer.headers["content-length"])
    with tarfile.open(fileobj=BytesIO(answer.content)) as packed:
        packed.extractall(folder, filter="data")
    [found] = folder.iterdir()
    return found


def left(service: Any) -> list[Path]:
    return [*(service.data / "deployments").glob("*")]


def tensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path)


@pytest.mark.parts
def test_adapters_and_models_of_each_checkpoint_of_a_run_with_an_adapter(
    service: Any, checkpoints: Path, tmp_path: Path
) -> None:
    run = service.run()
    items = service.hub.ok("GET", f"/runs/{run}/checkpoints", "ann")["items"]
    assert [(one["step"], one["archives"]) for one in items] == [
        (2, ["adapter", "model", "checkpoint"]),
        (4, ["adapter", "model", "checkpoint"]),
    ]
    adapter = archive(service, run, 2, "adapter", tmp_path / "adapter")
    expected = tensors(checkpoints / "adapters" / "step_2" / "adapter_model.safetensors")
    found = tensors(adapter / "adapter_model.safetensors")
    assert found.keys() == expected.keys()
    assert all(bool((found[name] == expected[name]).all()) for name in expected)
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"]) == ("whet/tiny", 4)  # not a path of the service's machine
    from whet.inference.loading import base_of_adapter
    from whet.models.tiny import path as tiny

    assert base_of_adapter(adapter) == tiny()
    model = archive(service, run, 4, "model", tmp_path / "model")
    expected = tensors(checkpoints / "merged_4" / "model.safetensors")
    found = tensors(model / "model.safetensors")
    assert all(bool((found[name] == expected[name]).all()) for name in expected)
    assert left(service) == []


@pytest.mark.parts
def test_an_adapter_of_a_model_that_was_sent_along_is_an_adapter(service: Any, tmp_path: Path) -> None:
    from whet.models.tiny import path as tiny

    run = service.run(model="models/own")
    shutil.copytree(tiny(), service.data / "runs" / run / "submission" / "models" / "own")
    adapter = archive(service, run, 2, "adapter", tmp_path / "adapter")
    assert (adapter / "adapter_model.safetensors").is_file()


@pytest.mark.parts
def test_a_model_of_each_checkpoint_where_all_weights_were_trained(
    service: Any, checkpoints: Path, tmp_path: Path
) -> None:
    run = service.run(kind="full")
    [item] = service.hub.ok("GET", f"/runs/{run}/checkpoints", "ann")["items"]
    assert item["archives"] == ["model", "checkpoint"]
    model = archive(service, run, 3, "model", tmp_path / "model")
    expected = tensors(checkpoints / "whole_3" / "model.safetensors")
    found = tensors(model / "model.safetensors")
    assert all(bool((found[name] == expected[name]).all()) for name in expected)
    error = service.hub.ask("GET", f"/runs/{run}/checkpoints/3/archive?what=adapter", "ann")
    assert error.status_code == 404


def test_what_the_run_has_written_itself_is_sent_as_it_is_with_the_name_of_its_base(
    service: Any, checkpoints: Path, tmp_path: Path
) -> None:
    run = service.run()
    own = service.data / "runs" / run / "run" / "adapters" / "step_4"
    shutil.copytree(checkpoints / "adapters" / "step_4", own)
    (own / "note.txt").write_text("of the run")
    adapter = archive(service, run, 4, "adapter", tmp_path / "adapter")
    assert (adapter / "note.txt").read_text() == "of the run"
    assert json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"] == "whet/tiny"


def test_damaged_and_missing_checkpoints_links_and_other_users_are_refused(service: Any) -> None:
    run = service.run()
    step = service.data / "runs" / run / "run" / "checkpoints" / "step_2"
    path = f"/runs/{run}/checkpoints/2/archive?what=adapter"
    for user, status in (("bob", 404), (None, 401)):
        assert service.hub.ask("GET", path, user).status_code == status
    weights = step / "adapter.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    error = service.hub.refused(422, "unreadable", "GET", path, "ann")
    assert "adapter.safetensors is damaged" in error["message"]
    assert str(service.data) not in error["message"]
    weights.unlink()
    weights.symlink_to("/etc/passwd")
    service.hub.refused(404, "not_found", "GET", path, "ann")
    service.hub.refused(404, "not_found", "GET", path.replace("/2/", "/9/"), "ann")
    assert left(service) == []


def test_weights_are_exported_one_after_the_other(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from whet.service import library

    run = service.run()
    monkeypatch.setattr(library, "WAIT_S", 0.0)
    with library._exporting:
        error = service.hub.refused(503, "busy", "GET", f"/runs/{run}/checkpoints/2/archive?what=adapter", "ann")
    assert "Try again" in error["message"]
    assert left(service) == []
