"""The models on this machine: listed, described, fetched, written in another format. What `whet model` does."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from whet.errors import ConfigError, ModelLoadError
from whet.inference.architecture import read_json
from whet.inference.loading import base_of_adapter
from whet.inference.model_names import PACKAGED, TINY, find_local, get_packaged, gguf_file, packaged_file, resolve_model
from whet.inference.weights import gguf_cache
from whet.system.files import replace_directory

CARD = "card.json"
"""What whet/tiny has with its files: how it was made, and its scores."""
DTYPES = ("float32", "bfloat16", "float16")
_USUAL_KEYS = {"hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"}


def local_models() -> list[dict[str, Any]]:
    """The models that need no name of a file: what ships, what packages hold, what the caches have."""
    rows = [{"model": TINY, "size_mb": _megabytes(find_local(TINY)), "where": "ships with whet"}]
    packaged = set()
    for name, one in PACKAGED.items():
        try:
            file = packaged_file(name)
            packaged.add(file.resolve())
            rows.append({"model": name, "size_mb": _megabytes(file), "where": str(file)})
        except ModelLoadError:
            where = f"not here: whet model get {name} ({one.size / 1e6:.0f} MB)"
            rows.append({"model": name, "size_mb": 0.0, "where": where})
    for file, directory in gguf_cache.conversions():
        if file not in packaged:
            rows.append({"model": str(file), "size_mb": _megabytes(directory), "where": f"read into {directory}"})
    return rows + _hub_cache()


def _hub_cache() -> list[dict[str, Any]]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    models = sorted((one for one in repositories if one.repo_type == "model"), key=lambda one: one.repo_id)
    return [
        {"model": one.repo_id, "size_mb": round(one.size_on_disk / 1e6, 1), "where": str(one.repo_path)}
        for one in models
    ]


def _megabytes(path: Path | None) -> float:
    if path is None:
        return 0.0
    files = path.iterdir() if path.is_dir() else [path]
    return round(sum(file.stat().st_size for file in files if file.is_file()) / 1e6, 1)


def get_model(model: str) -> Path:
    """Bring a model onto this machine; returns its directory. Raises `ModelLoadError` where it cannot be had."""
    if model in PACKAGED:
        get_packaged(model)
    return resolve_model(model)


def describe(model: str | Path) -> dict[str, Any]:
    """What `whet model show` prints of any name of a model, or of a PEFT adapter. Raises `ModelLoadError`."""
    directory = resolve_model(str(model))
    tensors = [tensor for file in sorted(directory.glob("*.safetensors")) for tensor in _tensors(file)]
    tensors = tensors or gguf_cache.indexed(directory)
    files: dict[str, Any] = {
        "parameters": sum(size for size, _ in tensors),
        "dtype": ", ".join(sorted({dtype for _, dtype in tensors})),
        "size_mb": round(sum(file.stat().st_size for file in directory.iterdir() if file.is_file()) / 1e6, 2),
    }
    if (base := base_of_adapter(directory)) is not None:
        adapter = read_json(directory / "adapter_config.json", "an adapter")
        named = {"model": str(model), "path": str(directory), "adapter_of": str(base), "rank": adapter.get("r")}
        return named | files
    config = read_json(directory / "config.json", "a model")
    if not tensors:
        raise ModelLoadError(f"{directory}: there are no weights (no *.safetensors).")
    tokenizer = read_json(directory / "tokenizer.json", "a model")
    sizes = _with_usual_keys(config)
    heads, shared = sizes.get("num_attention_heads"), sizes.get("num_key_value_heads")
    description: dict[str, Any] = {
        "model": str(model),
        "path": str(directory),
        "architecture": ", ".join(config.get("architectures") or [config.get("model_type", "unknown")]),
        **files,
        "hidden_size": sizes.get("hidden_size"),
        "layers": sizes.get("num_hidden_layers"),
        "heads": heads if shared is None else f"{heads} query, {shared} key/value",
        "context": sizes.get("max_position_embeddings"),
        "vocabulary": sizes.get("vocab_size"),
        "tokenizer": _tokenizer(tokenizer),
    }
    if (directory / CARD).is_file():
        card = json.loads((directory / CARD).read_text(encoding="utf-8"))
        description |= {
            "made": f"{card['steps']} steps of imitation on {card['demonstrations']} demonstrations from seed "
            f"{card['seed']}, {card['seconds']} s",
            "scores": card["scores"],
        }
    return description


def _with_usual_keys(config: dict[str, Any]) -> dict[str, Any]:
    """The config of the language model, also by the usual keys where the family has others, as `n_layer` of GPT-2."""
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    if text.keys() >= _USUAL_KEYS:
        return text
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = text.get("model_type")
    own = CONFIG_MAPPING[kind].attribute_map if kind in CONFIG_MAPPING else {}
    return {usual: text[key] for usual, key in own.items() if key in text} | text


def _tensors(file: Path) -> list[tuple[int, str]]:
    """Number of values and dtype of each tensor, from the header of a safetensors file; the weights stay unread."""
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    except (OSError, ValueError, MemoryError) as error:
        raise ModelLoadError(f"{file}: this is not a safetensors file: {error}") from None
    return [(prod(entry["shape"]), entry["dtype"]) for name, entry in header.items() if name != "__metadata__"]


def _tokenizer(tokenizer: dict[str, Any]) -> str:
    kind, added = tokenizer["model"].get("type", "unknown"), len(tokenizer.get("added_tokens", []))
    merges = len(tokenizer["model"].get("merges") or [])
    return f"{kind}, {len(tokenizer['model']['vocab'])} tokens with {merges} merges, {added} added tokens"


def convert_model(model: str, to: Path, *, dtype: str | None, metadata_from: Path | None) -> Path:
    """Write a model as safetensors into the directory `to`, or as GGUF in float16 where `to` ends in .gguf.

    An adapter is written as GGUF only, in float32.

    Raises `ConfigError` where `to` exists or the formats do not fit, `ModelLoadError` where the model cannot be read.
    """
    from whet.inference.weights.gguf_export import write_gguf, write_gguf_adapter

    if to.exists():
        raise ConfigError(f"{to} exists already. Name another file or directory.")
    is_file = to.suffix == ".gguf"
    if is_file and dtype not in (None, "float16"):
        raise ConfigError(f"--dtype {dtype}: GGUF files are written in float16.")
    if not is_file and metadata_from is not None:
        raise ConfigError(f"--metadata-from is for GGUF files; {to} is a directory.")
    directory = resolve_model(model)
    base = base_of_adapter(directory)
    if base is not None and (not is_file or metadata_from is not None):
        raise ConfigError(
            f"{model} is an adapter: it is converted to a .gguf file, without --metadata-from. The whole model of a "
            "training run is written by `whet train export RUN --format merged`."
        )
    try:
        if base is not None:
            write_gguf_adapter(directory, base, to)
        elif is_file:
            write_gguf(directory, to, metadata_from or gguf_file(model))
        else:
            _write_safetensors(directory, to, dtype or "float32")
    except OSError as error:
        raise ConfigError(f"{to} cannot be written: {error.strerror or error}") from None
    return to


def _write_safetensors(directory: Path, to: Path, dtype: str) -> None:
    import torch
    from transformers import AutoTokenizer

    from whet.rl.learner.make import load_model

    if dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype!r}: it is one of {', '.join(DTYPES)}.")
    model: Any = load_model(directory).to(getattr(torch, dtype))
    tokenizer = AutoTokenizer.from_pretrained(directory)

    def write(target: Path) -> None:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)

    replace_directory(to, write)
