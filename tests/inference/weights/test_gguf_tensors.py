"""A model in the blocks of its GGUF file: what it computes is what its dequantised weights compute."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tests.inference.weights import gguf_files
from transformers import AutoModelForCausalLM

from whet.errors import ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.loading import load_policy
from whet.inference.model_names import resolve_model
from whet.inference.plain.family import describe
from whet.inference.protocol import SampleRequest, SamplingParams, WeightUpdate
from whet.inference.weights.block_matrix import BlockMatrix, JoinedRows, joined
from whet.inference.weights.gguf_tensors import TRANSPOSED, GGUFTensors, complete
from whet.inference.weights.model_weights import pack, read_checkpoint

KINDS = gguf.GGMLQuantizationType
PROMPT = [5, 9, 40, 77, 8, 8, 120, 31]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(params=["llama", "qwen2", "qwen3", "phi3", "gemma3"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    own = request.param in ("phi3", "gemma3")  # whose width of heads is not read from the file
    dim, layers = gguf_files.HIDDEN // gguf_files.HEADS if own else 32, 6 if request.param == "gemma3" else 2
    gguf_files.write(tmp_path / "model.gguf", request.param, KINDS.Q4_1, dim=dim, layers=layers)
    return tmp_path / "model.gguf"


def logprobs(engine: object, adapter: str | None = None) -> list[float]:
    """Of what is drawn greedily after one prompt."""
    request = SampleRequest(PROMPT, SamplingParams(max_tokens=12, temperature=0.0), adapter=adapter)
    return asyncio.run(engine.sample(request)).logprobs  # type: ignore[attr-defined]


def test_a_file_that_was_read_has_no_dequantised_weights_until_they_are_needed(file: Path) -> None:
    directory = resolve_model(str(file))
    assert not list(directory.glob("*.safetensors"))
    assert complete(directory) == directory
    assert not (directory / TRANSPOSED).exists()
    named, tensors = read_checkpoint(directory), GGUFTensors.of(directory)
    assert named.keys() == tensors.keys()
    assert all(torch.equal(named[name], tensors.dense(name)) for name in named)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "phi3", "gemma3"])
def test_tensors_are_those_that_transformers_reads(tmp_path: Path, architecture: str) -> None:
    dim, layers = 128 if architecture == "qwen3" else 16, 6 if architecture == "gemma3" else 2
    gguf_files.write(tmp_path / "model.gguf", architecture, KINDS.Q4_1, dim=dim, layers=layers)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    tensors = GGUFTensors.of(resolve_model(str(tmp_path / "model.gguf")))
    for name, parameter in theirs.named_parameters():
        assert torch.equal(tensors.dense(name), parameter), name


def test_files_that_say_mistral_are_laid_out_as_those_that_say_llama(tmp_path: Path) -> None:
    """`transformers` reads the config of such a file, and not its tensors."""
    for name in ("llama", "mistral"):
        gguf_files.write(tmp_path / f"{name}.gguf", name, KINDS.Q8_0)
    llama, mistral = (GGUFTensors.of(resolve_model(str(tmp_path / f"{name}.gguf"))) for name in ("llama", "mistral"))
    assert llama.keys() == mistral.keys()
    assert all(torch.equal(llama.dense(name), mistral.dense(name)) for name in llama)


def test_an_engine_over_blocks_samples_as_one_over_dequantised_weights(file: Path) -> None:
    packed, dense = (load_policy(str(file), dtype=dtype).engine for dtype in ("packed", "float32"))
    assert logprobs(packed) == pytest.approx(logprobs(dense), rel=1e-5)


def test_blocks_are_computed_with_in_bfloat16(file: Path) -> None:
    packed = load_policy(str(file), dtype="bfloat16", base_dtype="packed").engine
    dense = load_policy(str(file), dtype="bfloat16").engine
    assert packed.dtype == torch.bfloat16  # type: ignore[attr-defined]
    assert logprobs(packed)[0] == pytest.approx(logprobs(dense)[0], abs=0.05)


def test_adapters_merged_and_named_are_computed_in_addition_to_the_blocks(file: Path, tmp_path: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(complete(resolve_model(str(file))), dtype=torch.float32)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, base_model_name_or_path=str(file))
    torch.manual_seed(0)
    get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    expected = logprobs(load_policy(str(tmp_path / "adapter")).engine)
    assert logprobs(load_policy(str(tmp_path / "adapter"), dtype="packed").engine) == pytest.approx(expected, rel=1e-4)
    named, own = (load_policy(str(file), dtype="packed").engine for _ in range(2))
    asyncio.run(named.load_weights(WeightUpdate(1, tmp_path / "adapter", "adapter", adapter="mine")))
    asyncio.run(own.load_weights(WeightUpdate(1, tmp_path / "adapter", "adapter")))
    assert logprobs(named, "mine") == pytest.approx(expected, rel=1e-4)
    assert logprobs(own) == pytest.approx(expected, rel=1e-4)


def test_engines_of_one_process_share_the_file(file: Path) -> None:
    first, second = (GGUFTensors.of(resolve_model(str(file))) for _ in range(2))
    name = next(name for name in first if name.endswith(("q_proj.weight", "qkv_proj.weight")))
    assert isinstance(first[name], BlockMatrix)
    assert first[name].blocks.data_ptr() == second[name].blocks.data_ptr()


def test_matrices_that_read_the_same_are_one_in_blocks(file: Path) -> None:
    tensors, arch = GGUFTensors.of(resolve_model(str(file))), describe(resolve_model(str(file)))
    assert isinstance(arch, Architecture)
    for layer in pack(tensors, arch, dtype=torch.float32, device=torch.device("cpu")).layers:
        for weight in (layer.qkv, layer.gate_up):
            assert isinstance(weight, JoinedRows)
            assert len(weight.parts) == 1
    down, output = (tensors[f"model.layers.0.{name}.weight"] for name in ("mlp.down_proj", "self_attn.o_proj"))
    assert isinstance(down, BlockMatrix)
    assert isinstance(output, BlockMatrix)
    assert len(joined([down, output])) == 2


def test_a_transposed_copy_that_cannot_be_written_is_said_and_leaves_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    directory = resolve_model(str(file))
    monkeypatch.setattr("whet.inference.weights.gguf_tensors.os.fsync", full)
    with pytest.raises(ModelLoadError, match=rf"{TRANSPOSED} cannot be written: .*No space left"):
        GGUFTensors.of(directory)
    assert not list(directory.glob(f"{Path(TRANSPOSED).stem}*"))


def test_a_learner_computes_in_the_thread_of_an_engine(file: Path) -> None:
    """What was dequantised to in inference mode is written to again without it."""
    matrix = GGUFTensors.of(resolve_model(str(file)))["model.layers.0.mlp.down_proj.weight"]
    assert isinstance(matrix, BlockMatrix)
    with ThreadPoolExecutor(1) as thread:
        x = torch.ones(2, matrix.columns)
        with torch.inference_mode():
            sampled = thread.submit(torch.inference_mode()(matrix.product), x).result()
        assert torch.equal(thread.submit(matrix.product, x.clone()).result(), sampled)


def test_a_model_without_blocks_is_refused_by_name() -> None:
    with pytest.raises(ModelLoadError, match="was not made from a file of one of the architectures"):
        load_policy("whet/tiny", dtype="packed")


def test_a_file_that_was_cut_after_it_was_read_is_refused(file: Path) -> None:
    directory = resolve_model(str(file))
    with file.open("r+b") as cut:
        cut.truncate(file.stat().st_size // 2)
    with pytest.raises(ModelLoadError, match="is cut off: it has"):
        GGUFTensors.of(directory)


def test_gradients_of_a_product_are_those_of_the_dequantised_matrix(file: Path) -> None:
    matrix = GGUFTensors.of(resolve_model(str(file)))["model.layers.1.mlp.down_proj.weight"]
    assert isinstance(matrix, BlockMatrix)
    x = torch.randn(2, 3, matrix.columns, generator=torch.Generator().manual_seed(0))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    matrix.product(ours).square().sum().backward()
    (theirs @ matrix.dense().T).square().sum().backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)
