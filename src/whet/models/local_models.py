"""The models on this machine, and writing one in another format. What `whet model list`, `get` and `convert` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whet.errors import ConfigError, ModelLoadError
from whet.inference.loading import base_of_adapter
from whet.inference.model_names import PACKAGED, TINY, find_local, get_packaged, gguf_file, packaged_file, resolve_model
from whet.inference.weights import gguf_cache
from whet.system.files import replace_directory

DTYPES = ("float32", "bfloat16", "float16")


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
