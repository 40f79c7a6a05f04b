"""GGUF files for llama.cpp, Ollama and LM Studio: a whole model in float16, and a LoRA adapter.

A model's tokenizer and settings are copied from the GGUF file that it was read from: whet changes weights, not those.
What is written is read back and compared before it gets its name. Sources: the format,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; the order of rows of queries and keys and the names of an
adapter's tensors, convert_hf_to_gguf.py and convert_lora_to_gguf.py of llama.cpp.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import ConfigError, MissingExtraError, ModelLoadError
from whet.inference.architecture import Architecture
from whet.inference.plain.family import describe
from whet.inference.weights.gguf_cache import source_of
from whet.inference.weights.model_weights import read_checkpoint
from whet.inference.weights.safetensors_files import read_safetensors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""The name in a GGUF file of each `model_type` that is written."""


def check_writable(model: Path) -> None:
    """Raise `ConfigError` for a family that is not written as GGUF, `MissingExtraError` without the library."""
    _architecture(model)
    _library()


def find_metadata(model: Path, given: Path | None) -> Path:
    """The GGUF file with a model's tokenizer and settings: the one that is given, or that the model was read from.

    Raises `ConfigError` where there is neither.
    """
    original = given or source_of(model)
    if original is None:
        raise ConfigError(
            f"{model} was not read from a GGUF file, so the tokenizer of the new file has no source. Give a GGUF file "
            "of the same model (--metadata-from), or convert the directory with llama.cpp's convert_hf_to_gguf.py."
        )
    if not original.is_file():
        from_where = "--metadata-from" if given else f"{model} was read from it; --metadata-from takes another one"
        raise ConfigError(f"there is no GGUF file {original} ({from_where}).")
    return original


def write_gguf(model: Path, file: Path, metadata_from: Path | None = None) -> None:
    """Write the model in directory `model` in float16, with tokenizer and settings of the file `metadata_from`.

    By default that is the GGUF file which the model was read from. Raises `ConfigError` where there is none or it is
    of another model, `ModelLoadError` where the weights cannot be read.
    """
    arch, name = _architecture(model)
    original = find_metadata(model, metadata_from)
    gguf = _library()
    try:
        source = gguf.GGUFReader(original)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{original} cannot be read as GGUF: {error}") from None
    tensors = {_name(gguf, arch, name, key): (key, tensor) for key, tensor in read_checkpoint(model).items()}
    shapes = {one.name: tuple(int(size) for size in reversed(one.shape)) for one in source.tensors}
    rotary = "rope_freqs.weight"  # of Llama 3.1 and later: computed from the settings, and no weight
    if arch.tied_embeddings and "output.weight" not in shapes:
        tensors.pop("output.weight", None)
    if {key: tuple(tensor.shape) for key, (_, tensor) in tensors.items()} != {
        key: shape for key, shape in shapes.items() if key != rotary
    }:
        raise ConfigError(f"{original} is of another model: its tensors have other names or shapes.")

    stored = {key: _stored(_permuted(arch, ours, tensor), ours) for key, (ours, tensor) in tensors.items()}

    def write(writer: Any) -> None:
        for field in source.fields.values():
            if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.file_type"):
                continue
            kind = field.types[0]
            inner = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=inner)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
        for one in source.tensors:
            if one.name == rotary:
                writer.add_tensor(one.name, one.data)
        for key, values in stored.items():
            writer.add_tensor(key, values)

    _write_checked(gguf, file, name, write, stored)


def write_gguf_adapter(adapter: Path, base: Path, file: Path) -> None:
    """Write the PEFT adapter in directory `adapter`, of the model in directory `base`, in float32.

    Raises `ConfigError` for an adapter that GGUF has no form for, `ModelLoadError` for one that cannot be read.
    """
    arch, name = _architecture(base)
    gguf = _library()
    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{adapter} has no readable adapter_config.json ({error}).") from None
    if config.get("use_rslora"):
        alpha *= rank**0.5  # readers divide by the rank, not by its root
    tensors = {}
    for key, tensor in read_safetensors([adapter / "adapter_model.safetensors"]).items():
        module, _, half = key.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".lora_")
        if half not in ("A", "B"):
            raise ConfigError(f"{adapter}: {key} is no part of a LoRA pair, and GGUF adapters hold nothing else.")
        matrix = _permuted(arch, f"{module}.weight", tensor) if half == "B" else tensor
        tensors[f"{_name(gguf, arch, name, f'{module}.weight')}.lora_{half.lower()}"] = matrix.float().numpy()

    def write(writer: Any) -> None:
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
        for key, matrix in tensors.items():
            writer.add_tensor(key, matrix)

    _write_checked(gguf, file, name, write, tensors)


def _write_checked(
    gguf: Any, file: Path, architecture: str, write: Callable[[Any], None], expected: dict[str, NDArray[np.generic]]
) -> None:
    """Write under another name, read it back, and rename it where it holds exactly what is expected."""
    import numpy as np

    aside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        writer = gguf.GGUFWriter(aside, architecture)
        write(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        written = {one.name: one.data for one in gguf.GGUFReader(aside).tensors}
        wrong = [key for key, values in expected.items() if not np.array_equal(written.get(key), values)]  # type: ignore[arg-type]
        if wrong:
            raise ModelLoadError(f"{file} was not written right: {wrong[0]} reads back with other values.")
        os.replace(aside, file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None
    finally:
        aside.unlink(missing_ok=True)


def _library() -> Any:
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise MissingExtraError("writing a GGUF file", "train") from error
    return gguf


def _architecture(model: Path) -> tuple[Architecture, str]:
    arch = describe(model)
    if not isinstance(arch, Architecture) or arch.model_type not in ARCHITECTURES:
        raise ConfigError(
            f"models of type {arch.model_type} are not written as GGUF by whet; it writes {', '.join(ARCHITECTURES)}."
        )
    if any(window is not None for window in arch.windows):
        raise ConfigError(f"this {arch.model_type} model has sliding windows, which its form as GGUF cannot say.")
    return arch, ARCHITECTURES[arch.model_type]


def _name(gguf: Any, arch: Architecture, architecture: str, name: str) -> str:
    """`model.layers.0.self_attn.q_proj.weight` is `blk.0.attn_q.weight`."""
    [number] = (key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    gguf_name = gguf.get_tensor_name_map(number, arch.num_layers).get_name(name, try_suffixes=(".weight", ".bias"))
    if gguf_name is None:
        raise ConfigError(f"GGUF has no name for the tensor {name} of a {arch.model_type} model.")
    return str(gguf_name)


def _permuted(arch: Architecture, name: str, tensor: Tensor) -> Tensor:
    """Rows of queries and keys of a Llama: llama.cpp rotates neighbours, `transformers` rotates halves."""
    if ARCHITECTURES[arch.model_type] != "llama" or not name.endswith(("q_proj.weight", "k_proj.weight")):
        return tensor
    heads = arch.num_heads if name.endswith("q_proj.weight") else arch.num_kv_heads
    split = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return split.transpose(1, 2).reshape(tensor.shape)


def _stored(tensor: Tensor, name: str) -> NDArray[np.generic]:
    import torch

    if tensor.dim() == 1:
        return tensor.float().numpy()
    half = tensor.to(torch.float16)
    if not torch.isfinite(half).all():
        raise ConfigError(f"{name} has values that float16 cannot hold; keep this model as safetensors.")
    return half.contiguous().numpy()
