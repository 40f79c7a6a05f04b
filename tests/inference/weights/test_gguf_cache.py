"""Models in GGUF files: what is read is what the file holds, once, and a bad file gets one clear line."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.inference.weights import gguf_files
from transformers import AutoModelForCausalLM

from whet.errors import ModelLoadError
from whet.inference.architecture import Rope, read_architecture
from whet.inference.embedded import EmbeddedEngine
from whet.inference.loading import load_policy
from whet.inference.model_names import find_local, resolve_model
from whet.inference.protocol import SampleRequest, SamplingParams
from whet.inference.weights import gguf_cache
from whet.inference.weights.gguf_tensors import complete
from whet.inference.weights.model_weights import read_checkpoint

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


KINDS = gguf.GGMLQuantizationType


@pytest.mark.parametrize(
    ("architecture", "kind", "tied"),
    [
        ("llama", KINDS.Q8_0, False),
        ("llama", KINDS.Q4_1, True),
        ("qwen2", KINDS.F16, False),
        ("qwen3", KINDS.Q8_0, True),
    ],
)
def test_logits_equal_those_of_transformers_own_reading(
    tmp_path: Path, architecture: str, kind: gguf.GGMLQuantizationType, tied: bool
) -> None:
    file = tmp_path / "model.gguf"
    # of a Qwen3's heads transformers reads no other width
    gguf_files.write(file, architecture, kind, tied=tied, dim=128 if architecture == "qwen3" else 16)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(complete(resolve_model(str(file))), dtype=torch.float32)
    ids = torch.randint(0, 200, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (ours(ids).logits - theirs(ids).logits).abs().max() <= 1e-5


def test_values_are_those_of_the_file_dequantised(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file, "qwen2", KINDS.Q4_1)
    stored = {one.name: gguf.dequantize(one.data, one.tensor_type) for one in gguf.GGUFReader(file).tensors}
    named = read_checkpoint(resolve_model(str(file)))
    assert len(named) == len(stored)
    for ours, theirs in [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight"),
        ("model.layers.0.self_attn.k_proj.bias", "blk.0.attn_k.bias"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.norm.weight", "output_norm.weight"),
    ]:
        assert torch.equal(named[ours], torch.from_numpy(stored[theirs]).reshape(named[ours].shape))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dim", [32, 128])
def test_heads_have_the_width_that_the_file_says(tmp_path: Path, architecture: str, dim: int) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file, architecture, KINDS.F32, dim=dim)
    directory = resolve_model(str(file))
    assert read_architecture(directory).head_dim == dim != gguf_files.HIDDEN // gguf_files.HEADS
    stored = {one.name: torch.from_numpy(one.data.copy()) for one in gguf.GGUFReader(file).tensors}
    named = read_checkpoint(directory)
    assert torch.equal(named["model.layers.1.self_attn.v_proj.weight"], stored["blk.1.attn_v.weight"])
    assert torch.equal(named["model.layers.1.self_attn.o_proj.weight"], stored["blk.1.attn_output.weight"])
    model = AutoModelForCausalLM.from_pretrained(complete(directory), dtype=torch.float32)
    assert model.model.layers[0].self_attn.head_dim == dim


LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
PHI = {"rope.dimension_count": 12, "rope.scaling.original_context_length": 64, "rope.scaling.attn_factor": 1.25}
SHORT, LONG = np.linspace(1, 2, 6), np.linspace(2, 9, 6)
WAVES = 2 * np.pi * 10_000.0 ** (np.arange(64) / 64)
# as convert_hf_to_gguf.py of llama.cpp computes rope_freqs of Llama 3.1
SMOOTH = np.clip((8192 / WAVES - 1) / 3, 0, 1)
LLAMA3 = {"rope_freqs.weight": 1 / ((1 - SMOOTH) / 8 + SMOOTH)}


@pytest.mark.parametrize(
    ("architecture", "metadata", "extra", "expected"),
    [
        ("llama", {}, LLAMA3, Rope(1e4, 128, "llama3", 8.0, 1.0, 8192, 1.0, 4.0)),
        ("qwen2", LINEAR, {}, Rope(1e4, 128, "linear", 8.0, original_max_position=128)),
        ("qwen3", YARN, {}, Rope(1e4, 128, "yarn", 4.0, 0.1 * np.log(4) + 1, 32)),
        ("gemma3", LINEAR, {}, Rope(1e4, 128, "linear", 8.0, original_max_position=128)),
    ],
)
def test_positions_are_scaled_as_the_file_says(
    tmp_path: Path, architecture: str, metadata: dict[str, Any], extra: dict[str, Any], expected: Rope
) -> None:
    file = tmp_path / "model.gguf"
    metadata = {f"{architecture}.{name}": value for name, value in metadata.items()}
    gguf_files.write(file, architecture, KINDS.F32, dim=128, metadata=metadata, extra=extra, layers=6)
    arch = read_architecture(resolve_model(str(file)))
    rope = arch.ropes[-1]  # of Gemma 3 the sixth layer is the first that is not sliding
    assert rope is not None
    assert dataclasses.replace(rope, factor=round(rope.factor, 4)) == expected
    assert arch.ropes[0] == (Rope(1e4, 128) if architecture == "gemma3" else rope)


def test_long_context_of_a_phi_comes_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    metadata = {f"phi3.{name}": value for name, value in PHI.items()} | {"phi3.attention.sliding_window": 40}
    extra = {"rope_factors_short.weight": SHORT, "rope_factors_long.weight": LONG}
    gguf_files.write(file, "phi3", KINDS.F32, metadata=metadata, extra=extra)
    directory = resolve_model(str(file))
    arch = read_architecture(directory)
    rope = arch.ropes[0]
    assert rope is not None
    assert (rope.kind, rope.dim, rope.attention_factor) == ("longrope", 12, 1.25)
    assert rope.short_factors == tuple(SHORT.astype(np.float32))
    assert (arch.max_context, arch.windows) == (64, (40, 40))
    model = AutoModelForCausalLM.from_pretrained(complete(directory), dtype=torch.float32, attn_implementation="eager")
    ids, engine = [*range(50)], EmbeddedEngine.from_directory(directory)
    sample = asyncio.run(engine.sample(SampleRequest(ids, SamplingParams(max_tokens=8, seed=1))))
    with torch.no_grad():
        expected = model(torch.tensor([ids + sample.ids])).logits[0, 49:-1].log_softmax(-1)
    taken = expected.gather(1, torch.tensor(sample.ids)[:, None])[:, 0]
    assert (taken - torch.tensor(sample.logprobs)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("metadata", "extra", "says"),
    [
        ({"llama.rope.scaling.type": "su"}, {}, "scaled by su"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_ext_factor": 0.5}, {}, "by yarn_ext_factor"),
        ({}, {"rope_freqs.weight": np.linspace(1, 8, 8)}, "rope_freqs are not those of Llama 3.1"),
    ],
)
def test_positions_that_cannot_be_read_are_refused(
    tmp_path: Path, metadata: dict[str, Any], extra: dict[str, Any], says: str
) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file, metadata=metadata, extra=extra)
    with pytest.raises(ModelLoadError, match=says):
        resolve_model(str(file))


def test_heads_of_two_widths_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file, "qwen3", dim=32, value_dim=16)
    with pytest.raises(ModelLoadError, match="keys of width 32 and values of width 16; only equal widths are read"):
        resolve_model(str(file))


def test_tokenizer_and_template_come_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file)
    policy = load_policy(str(file))
    assert policy.tokenizer.chat_template == gguf_files.TEMPLATE
    text = "<|im_start|>user\nabba ü<|im_end|>\n"
    ids = policy.tokenizer(text).input_ids
    assert policy.tokenizer.decode(ids) == text
    assert (ids[0], len(gguf_files.SPECIAL) + 256 in ids) == (1, True)


def test_a_file_is_converted_once_and_found_by_its_content(tmp_path: Path, own_cache: Path) -> None:
    file, copy = tmp_path / "model.gguf", tmp_path / "copy.gguf"
    gguf_files.write(file)
    assert find_local(str(file)) is None
    directory = resolve_model(str(file))
    assert len({path.stat().st_mode for path in directory.iterdir()}) == 1
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    shutil.copy(file, copy)
    assert find_local(str(copy)) == resolve_model(str(file)) == directory
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before
    assert list(gguf_cache.conversions()) == [(file, directory)]


def test_a_file_that_has_moved_is_read_where_it_is(tmp_path: Path) -> None:
    file, moved = tmp_path / "model.gguf", tmp_path / "moved.gguf"
    gguf_files.write(file, "llama", KINDS.Q8_0)
    directory = resolve_model(str(file))
    file.rename(moved)
    assert gguf_cache.prepared(moved) == directory
    assert gguf_cache.gguf_source(directory) == moved


def test_a_conversion_is_found_in_a_cache_that_cannot_be_written(tmp_path: Path, own_cache: Path) -> None:
    file, cache = tmp_path / "model.gguf", own_cache / "whet" / "gguf"
    gguf_files.write(file)
    first = gguf_cache.convert(file)
    shutil.rmtree(cache / "digests")
    (cache / "digests").touch()
    first.with_suffix(".lock").unlink()
    first.with_suffix(".lock").mkdir()
    assert gguf_cache.convert(file) == gguf_cache.converted(file) == first


def test_a_changed_file_is_converted_again(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file, seed=0)
    first = resolve_model(str(file))
    gguf_files.write(file, seed=1)
    assert find_local(str(file)) is None
    assert resolve_model(str(file)) != first


def test_a_killed_conversion_leaves_nothing_that_counts(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file)
    directory = resolve_model(str(file))
    (directory / gguf_cache.SOURCE).unlink()  # written last
    assert find_local(str(file)) is None
    assert json.loads((resolve_model(str(file)) / gguf_cache.SOURCE).read_text())["file"] == str(file)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a GGUF file"),
        (b"PK\x03\x04zip", "is not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00", "is cut off or damaged"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "model.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ModelLoadError) as raised:
        resolve_model(str(file))
    assert says in str(raised.value)
    assert str(file) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_torn_file_is_one_line_and_leaves_no_directory(tmp_path: Path, own_cache: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file)
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(ModelLoadError, match="is cut off or damaged"):
        resolve_model(str(file))
    assert not list(own_cache.glob("whet/gguf/*/config.json"))


def test_an_architecture_that_is_not_known_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.write(file, "rwkv7")
    assert gguf_cache.prepared(file) is None
    with pytest.raises(ModelLoadError, match="rwkv7"):
        resolve_model(str(file))
