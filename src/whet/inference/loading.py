"""From the name of a model to a policy that can be sampled: files, tokenizer, renderer, engine, client."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import MissingExtraError, ModelLoadError
from whet.inference.architecture import Architecture, read_json
from whet.inference.devices import BLOCK_FORMS, choose_device, expand_segments
from whet.inference.model_names import ADAPTER_CONFIG, find_local, resolve_model
from whet.inference.plain.family import OtherFamily, check_known, describe

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from whet.inference.decoding.parts import WholeModel
    from whet.inference.policy_client import PolicyClient
    from whet.inference.protocol import Engine
    from whet.inference.rendering.chat_renderer import ChatRenderer
    from whet.inference.weights.safetensors_files import NamedWeights

_log = logging.getLogger(__name__)
_announced: set[Path] = set()
_TOO_LONG = "sequence-length-is-longer-than-the-specified-maximum"
"""What `transformers` calls its warning of a text that is longer than the model's context."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's directory, read as far as text and sizes go; no weight has been touched.

    `base` is the directory of an adapter's base model, None for a directory with a whole model.
    """

    path: Path
    base: Path | None
    arch: Architecture | OtherFamily
    tokenizer: Any
    renderer: ChatRenderer


@dataclass(slots=True)
class Policy:
    """A model ready to be sampled, and where its files are."""

    path: Path
    engine: Engine
    tokenizer: Any
    renderer: ChatRenderer
    client: PolicyClient
    seeded: bool = True
    """Whether the seed of a request fixes what is drawn."""


def load_policy(
    model: str | ModelFiles,
    *,
    dtype: str = "float32",
    device: str = "auto",
    threads: int | None = None,
    max_context: int | None = None,
    max_rows: int = 256,
    kv_bytes: int | None = None,
    seed: int | None = None,
    record_experts: bool = False,
    record_kept: bool = False,
    repeatable: bool = True,
    base_dtype: str | None = None,
    batch_invariant: bool = False,
) -> Policy:
    """Load `whet/tiny`, a local directory or a Hugging Face id into the embedded engine.

    Args:
        model: `whet/tiny` ships with the package; a directory wins over a Hugging Face id of the same name. A directory
            with a PEFT adapter is merged onto the base model that it names. Or what `read_model` made of one.
        dtype: `float32` (exact: agrees with the learner), `bfloat16`, or `packed`: the matrices of a GGUF file stay in
            its blocks, `nf4`, `int8`: layers of safetensors are quantised (`quantised_base.py`); these are computed
            with in float32, on CUDA in bfloat16.
        device: `auto` (CUDA, then MPS where it can, else CPU), `cpu`, `cuda`, `cuda:N` or `mps`.
        threads: torch threads; default: leave as it is.
        max_context: tokens of prompt and answer together; default: the model's own limit.
        max_rows: rollouts decoded together.
        kv_bytes: memory of the KV cache; default: a quarter of the device's.
        seed: fixes the draws of requests that bring no seed.
        record_experts: samples of a mixture of experts record which experts their tokens went to.
        record_kept: samples of requests with top-p, top-k, min-p or temperature 0 record which tokens were left.
        repeatable: the same requests give the same bits, whatever came before; False saves work for a server.
        base_dtype: adapters of the policy are to come, from a learner that has the model as their base in this dtype,
            or one of the latter, and computed with in `dtype`; a large one is shared with it, and not merged with them
            (`weights/frozen_base.py`).
        batch_invariant: answers have the same bits whatever else is in the batch; see `EmbeddedEngine`.

    Raises `ModelLoadError` for files that are missing, torn or of an unsupported architecture, in one line.
    """
    try:
        import torch

        from whet.inference.embedded import EmbeddedEngine
        from whet.inference.limits import EngineLimits
        from whet.inference.policy_client import PolicyClient
        from whet.inference.weights.frozen_base import FrozenBase, worth_sharing
        from whet.inference.weights.quantised_base import frozen_tensors
    except ModuleNotFoundError as error:
        raise _missing(error) from error

    on = choose_device(device)
    expand_segments(on)
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    dtypes |= dict.fromkeys(BLOCK_FORMS, torch.bfloat16 if on.startswith("cuda") else torch.float32)
    if dtype not in dtypes:
        raise ModelLoadError(f"dtype must be one of {', '.join(dtypes)}, not {dtype!r}")
    if threads is not None:
        torch.set_num_threads(threads)
    files = read_model(model) if isinstance(model, str) else model
    whole = files.base or files.path
    form = next((each for each in (dtype, base_dtype) if each in BLOCK_FORMS), None)
    apart = form is not None  # whether an adapter is kept apart from the weights that it belongs to
    if form is not None:
        weights: WholeModel = frozen_tensors(whole, files.arch, form, on)
    elif base_dtype is not None and isinstance(files.arch, Architecture) and worth_sharing(whole, files.arch):
        weights, apart = FrozenBase.of(whole, files.arch, getattr(torch, base_dtype), on), True
    else:
        apart = _changes_tied_unembedding(files)
        weights = _weights(files, dtypes[dtype], merged=not apart)
    engine = EmbeddedEngine(
        files.arch,
        weights,
        dtype=dtypes[dtype],
        device=on,
        adapter=files.path if apart and files.base is not None else None,
        limits=EngineLimits(max_rows=max_rows, kv_bytes=kv_bytes, max_context=max_context),
        decode_text=files.renderer.decode,
        seed=seed,
        record_experts=record_experts,
        record_kept=record_kept,
        repeatable=repeatable,
        batch_invariant=batch_invariant,
    )
    client = PolicyClient(engine, files.renderer, max_context=engine.max_context, in_threads=not repeatable)
    return Policy(path=files.path, engine=engine, tokenizer=files.tokenizer, renderer=files.renderer, client=client)


def _changes_tied_unembedding(files: ModelFiles) -> bool:
    """Whether an adapter is of an unembedding that is the embedding, which stays as it is: it cannot be merged."""
    from whet.inference.weights.adapters import UNEMBEDDING, read_adapter

    if files.base is None or not isinstance(files.arch, Architecture) or not files.arch.tied_embeddings:
        return False
    return UNEMBEDDING in read_adapter(files.path)


def _weights(files: ModelFiles, dtype: torch.dtype, *, merged: bool) -> NamedWeights | PreTrainedModel:
    """What an engine is made of; `merged` with an adapter in it."""
    directory = files.base or files.path
    if isinstance(files.arch, Architecture):
        from whet.inference.weights.adapters import merge_adapter
        from whet.inference.weights.model_weights import read_checkpoint

        named = read_checkpoint(directory)
        return merge_adapter(named, files.path) if merged and files.base is not None else named
    from whet.inference.plain.weights import load_transformers, merge_into

    model = load_transformers(directory, dtype)
    if files.base is not None:
        merge_into(model, files.path)
    return model


def read_model(model: str, *, announce: bool = True) -> ModelFiles:
    """What a client of an engine of `model` in another process needs. Raises `ModelLoadError` as `load_policy` does.

    With `announce` a model that does not run through whet's own forward pass is reported, once a process.
    """
    path = resolve_model(model)
    base = base_of_adapter(path)
    arch = describe(base or path)  # first of all: it reports what is missing, or refuses by name
    try:
        from transformers import AutoTokenizer

        from whet.inference.rendering.chat_renderer import ChatRenderer
    except ModuleNotFoundError as error:
        raise _missing(error) from error

    if isinstance(arch, OtherFamily):
        check_known(base or path, arch)
        if announce and path not in _announced:
            _announced.add(path)
            _log.warning("%s: %s", model, arch.notice)
    try:
        config = _config_of_tokenizer(base or path)
        tokenizer = AutoTokenizer.from_pretrained(base or path, trust_remote_code=False, config=config)
    except Exception as error:  # the tokenizer libraries raise bare Exceptions for torn files
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelLoadError(f"the tokenizer in {base or path} cannot be read ({reason})") from None
    tokenizer.deprecation_warnings[_TOO_LONG] = True  # marked as logged: the client reports it, for each request
    return ModelFiles(path, base, arch, tokenizer, ChatRenderer(tokenizer))


def _config_of_tokenizer(directory: Path) -> Any:
    """What `transformers` reads of a model's config to choose the tokenizer's class, where its own file names that.

    None otherwise: then it reads the config as the model's. That of some families, Llama's among them, imports what
    models are made of, and with that torch's compiler and sympy, 80 MiB.
    """
    own, whole = (read_json(directory / name, "a model") for name in ("tokenizer_config.json", "config.json"))
    if "tokenizer_class" not in own or "auto_map" in own:
        return None
    from transformers import PreTrainedConfig

    config: Any = PreTrainedConfig(name_or_path=str(directory))
    config.model_type, config.model_name = whole.get("model_type", ""), whole.get("model_name")
    return config


def import_parts() -> None:
    """Import what loading and sampling a model needs, as a server does before it answers: the packages import their
    parts on demand, and two threads that do so at once may each find a half of one."""
    try:
        from transformers import AutoTokenizer

        from whet.inference.embedded import EmbeddedEngine
        from whet.inference.policy_client import PolicyClient
        from whet.inference.rendering.chat_renderer import ChatRenderer
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    del AutoTokenizer, EmbeddedEngine, PolicyClient, ChatRenderer


def _missing(error: ModuleNotFoundError) -> Exception:
    """What to raise for it: an extra that is missing, or the error itself where the module is our own."""
    if error.name and error.name.startswith("whet"):
        return error
    return MissingExtraError("running a model in this process", "train")


def check_model(model: str) -> None:
    """Raise `ModelLoadError` for a model that cannot be run here, as far as this is known without a download.

    Imports neither torch nor `transformers`. A Hugging Face id passes: whether it exists is known to the hub alone.
    """
    path = find_local(model)
    if path is None:
        return
    base = _base_name(path)
    if base is None:
        describe(path)
    else:
        with _naming_base(path, base):
            check_model(base)


def context_of(model: str) -> int | None:
    """Tokens that a prompt and its answer may have together; None for a model that is not on this machine.

    Imports neither torch nor `transformers`. Raises `ModelLoadError` as `check_model` does.
    """
    path = find_local(model)
    if path is None:
        return None
    base = _base_name(path)
    return describe(path).max_context if base is None else context_of(base)


def over_context(key: str, max_tokens: int, context: int | None) -> list[str]:
    """A line where answers cannot have the `max_tokens` that `key` allows; none where the context is not known."""
    if context is None or max_tokens < context:
        return []
    return [
        f"{key} = {max_tokens:,} is more than the context of {context:,} tokens leaves: prompt and answers share it, "
        "and an answer that does not end is cut off where it is full"
    ]


def base_of_adapter(directory: Path) -> Path | None:
    """The directory of a PEFT adapter's base model; None for a directory with a whole model."""
    base = _base_name(directory)
    if base is None:
        return None
    with _naming_base(directory, base):
        return resolve_model(base)


def shares_base(adapter: str, model: str) -> bool:
    """Whether `adapter` is one of `model`, as far as this is known without a download."""
    directory = find_local(adapter)
    base = None if directory is None else _base_name(directory)
    ours, theirs = find_local(model), None if base is None else find_local(base)
    return ours is not None and theirs is not None and ours.resolve() == theirs.resolve()


def _base_name(directory: Path) -> str | None:
    """The base model that a PEFT adapter names; None for a directory with a whole model."""
    file = directory / ADAPTER_CONFIG
    if (directory / "config.json").exists() or not file.exists():
        return None
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (ValueError, KeyError, TypeError):
        raise ModelLoadError(f"{file} does not name a base model; export the adapter again") from None


@contextmanager
def _naming_base(directory: Path, base: str) -> Iterator[None]:
    """Errors about the base model name the adapter too."""
    try:
        yield
    except ModelLoadError as error:
        where = f"base_model_name_or_path in {directory / ADAPTER_CONFIG}"
        raise ModelLoadError(f"{directory} is an adapter of {base}: {error} ({where})") from None
