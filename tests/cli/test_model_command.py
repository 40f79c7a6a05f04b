"""`whet model`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.inference.weights import gguf_files
from transformers import AutoModelForCausalLM

from whet.cli.main import main
from whet.models.tiny import path as tiny


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Stands in for the room; the list holds what it was asked for."""
    calls: list[tuple[Any, ...]] = []

    def describe(model: str | Path) -> dict[str, Any]:
        calls.append(("describe", str(model)))
        return {"architecture": "Qwen3ForCausalLM", "scores": [{"environment": "calculator", "reward": 0.4}]}

    monkeypatch.setattr("whet.models.local_models.describe", describe)
    return calls


def test_show_describes_the_tiny_model_unless_told_another(room: list[tuple[Any, ...]]) -> None:
    main(["model", "show"])
    main(["model", "show", "runs/a/model"])
    assert room == [("describe", "whet/tiny"), ("describe", "runs/a/model")]


def test_show_prints_lines_and_tables_or_json(room: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    main(["model", "show"])
    out = capsys.readouterr().out
    assert "architecture  Qwen3ForCausalLM" in out
    assert "calculator" in out
    main(["model", "show", "--json"])
    assert json.loads(capsys.readouterr().out)["scores"][0]["reward"] == 0.4


def test_convert_and_list_a_gguf_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file, folder, back = tmp_path / "model.gguf", tmp_path / "half", tmp_path / "back.gguf"
    gguf_files.write(file)
    assert main(["model", "convert", str(file), str(folder), "--dtype", "bfloat16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"model": str(file), "saved": str(folder)}
    assert main(["model", "show", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "BF16"
    assert main(["model", "convert", str(folder), str(back), "--metadata-from", str(file)]) == 0
    assert main(["model", "get", str(back), "--json"]) == 0
    capsys.readouterr()
    assert main(["model", "list", "--json"]) == 0
    models = [row["model"] for row in json.loads(capsys.readouterr().out)["models"]]
    assert models[:2] == ["whet/tiny", "smollm2-135m"]
    assert {str(file), str(back)} <= set(models)


BAD_MODELS = {
    "missing.gguf": "cannot be read: No such file",
    "empty.gguf": "is not a GGUF file",
    "text.gguf": "is not a GGUF file",
    "head.gguf": "is cut off or damaged",
    "torn.gguf": "is cut off or damaged",
    "adapter.gguf": "holds no model but a GGUF file of type 'adapter'",
    "empty": "empty is not a model directory: it has no config.json",
    "config-only": "there are no weights",
    "smollm3-1b": "Give whet/tiny, smollm2-135m, a directory",
    "": "the name of a model is empty",
}


@pytest.mark.parametrize("command", ["show", "get"])
@pytest.mark.parametrize("model", BAD_MODELS)
def test_a_bad_model_is_one_line(
    command: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    gguf_files.write(tmp_path / "whole.gguf")
    content = (tmp_path / "whole.gguf").read_bytes()
    files = {"empty": b"", "text": b"hello", "head": content[:400], "torn": content[:-5000]}
    for name, kept in files.items():
        (tmp_path / f"{name}.gguf").write_bytes(kept)
    writer = gguf.GGUFWriter(tmp_path / "adapter.gguf", "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "config-only").mkdir()
    (tmp_path / "config-only" / "config.json").write_text('{"model_type": "llama"}')
    assert main(["model", command, model]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert BAD_MODELS[model] in captured.err
    assert captured.err.count("\n") == 1


def test_an_adapter_is_described_and_converted_to_gguf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = AutoModelForCausalLM.from_pretrained(tiny(), dtype=torch.float32)
    get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    monkeypatch.chdir(tmp_path)
    assert main(["model", "show", "adapter", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["adapter_of"], shown["rank"]) == (str(tiny()), 2)
    assert main(["model", "convert", "adapter", "adapter.gguf"]) == 0
    assert gguf.GGUFReader(tmp_path / "adapter.gguf").fields["adapter.type"].contents() == "lora"
    assert main(["model", "convert", "adapter", "whole"]) == 2
    assert "whet train export RUN --format merged" in capsys.readouterr().err
    assert main(["model", "convert", "whet/tiny", "adapter.gguf/below"]) == 2
    assert "adapter.gguf/below cannot be written: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["whet/tiny", "here"], "exists already"),
        (["whet/tiny", "new", "--dtype", "int8"], "it is one of float32, bfloat16, float16"),
        (["whet/tiny", "new.gguf"], "convert_hf_to_gguf.py"),
        (["whet/tiny", "new.gguf", "--dtype", "float32"], "GGUF files are written in float16"),
        (["whet/tiny", "new", "--metadata-from", "x.gguf"], "--metadata-from is for GGUF files"),
    ],
)
def test_convert_refuses_what_cannot_be_written(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    assert main(["model", "convert", *words]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]
