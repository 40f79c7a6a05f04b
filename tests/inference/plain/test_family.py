"""Which models run through transformers' own forward pass, and which are refused by name before anything runs."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from scripts.tiny_model.tokenizer import build_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.embedded import EmbeddedEngine
from whet.inference.loading import check_model, context_of, load_policy, read_model
from whet.inference.plain.family import CONTEXT_WHERE_UNSTATED, OtherFamily, describe

Others = Callable[[str], tuple[Path, Any]]


def config_of(directory: Path, **keys: Any) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(keys))
    return directory


def test_a_known_family_keeps_its_own_forward_and_others_are_described(others: Others, tmp_path: Path) -> None:
    llama = {"model_type": "llama", "vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    llama |= {"num_attention_heads": 2, "max_position_embeddings": 32}
    assert isinstance(describe(config_of(tmp_path / "llama", **llama)), Architecture)
    found = describe(others("gpt2")[0])
    assert isinstance(found, OtherFamily)
    assert (found.model_type, found.vocab_size, found.max_context) == ("gpt2", 512, 256)
    capped = llama | {"rope_scaling": {"rope_type": "mystery", "rope_theta": 1e4}}
    assert isinstance(describe(config_of(tmp_path / "mystery", **capped)), OtherFamily)
    with pytest.raises(ModelLoadError, match="lacks the key 'hidden_size'"):
        describe(config_of(tmp_path / "torn", **{key: llama[key] for key in llama if key != "hidden_size"}))


def test_context_is_the_one_that_config_or_tokenizer_state(tmp_path: Path) -> None:
    keys = {"model_type": "bloom", "vocab_size": 9}
    assert context_of(str(config_of(tmp_path / "a", **keys))) == CONTEXT_WHERE_UNSTATED
    (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 77}))
    assert context_of(str(tmp_path / "a")) == 77
    assert context_of(str(config_of(tmp_path / "b", **keys, seq_length=99))) == 99
    scaled = {"max_position_embeddings": 900, "original_max_position_embeddings": 90}
    rope = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}
    assert context_of(str(config_of(tmp_path / "c", **keys, **scaled, rope_scaling=rope))) == 90


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"vocab_size": 9}, "does not say what kind of model"),
        ({"model_type": "t5", "vocab_size": 9, "is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"model_type": "vit"}, "states no vocab_size"),
        ({"model_type": "llama", "vocab_size": 9, "quantization_config": {"bits": 4}}, "quantised weights"),
    ],
    ids=["no type", "encoder-decoder", "no language", "quantised"],
)
def test_what_the_config_rules_out_is_refused_without_torch(tmp_path: Path, keys: Any, message: str) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    with pytest.raises(ModelLoadError, match=message):
        check_model(str(config_of(tmp_path / "m", **sizes, max_position_embeddings=32, **keys)))


def test_code_that_comes_with_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    auto_map = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    directory = config_of(tmp_path / "m", model_type="evil", vocab_size=512, auto_map=auto_map)
    (directory / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass EvilConfig: pass\n")
    build_tokenizer().save_pretrained(directory)
    with pytest.raises(ModelLoadError, match="never runs such code"):
        load_policy(str(directory))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("kind", "message"), [("siglip_text_model", "no causal"), ("no_such_type", "cannot read")])
def test_a_type_without_a_causal_language_model_is_refused(tmp_path: Path, kind: str, message: str) -> None:
    directory = config_of(tmp_path / "m", model_type=kind, vocab_size=512)
    build_tokenizer().save_pretrained(directory)
    with pytest.raises(ModelLoadError, match=message):
        read_model(str(directory))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("bert", {"num_attention_heads": 4, "intermediate_size": 32}, "cannot be continued exactly"),
        ("mamba", {"state_size": 4}, "more than keys and values"),
        ("openai-gpt", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, "more than keys and values"),
    ],
)
def test_a_model_that_cannot_be_continued_exactly_is_refused(
    tmp_path: Path, kind: str, sizes: dict[str, Any], message: str
) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=64, hidden_size=32, num_hidden_layers=2, **sizes)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match=message):
        EmbeddedEngine.from_directory(tmp_path)


def test_a_checkpoint_that_lacks_a_tensor_is_refused(others: Others, tmp_path: Path) -> None:
    directory, _ = others("gpt2")
    weights = load_file(directory / "model.safetensors")
    (tmp_path / "config.json").write_text((directory / "config.json").read_text())
    missing = "transformer.h.1.mlp.c_fc.weight"
    save_file({k: v for k, v in weights.items() if k != missing}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelLoadError, match=f"lack '{missing}'"):
        EmbeddedEngine.from_directory(tmp_path)


def test_the_slower_forward_pass_is_reported_once(others: Others, caplog: pytest.LogCaptureFixture) -> None:
    directory, _ = others("opt")
    with caplog.at_level(logging.WARNING, logger="whet.inference.loading"):
        for _ in range(2):
            read_model(str(directory))
    assert [record.getMessage() for record in caplog.records] == [
        f"{directory}: whet's own forward pass does not know opt models: the model runs through that of transformers, "
        "which is slower"
    ]
