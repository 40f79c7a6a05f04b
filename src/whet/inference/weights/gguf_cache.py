"""Models in GGUF files (llama.cpp, Ollama, LM Studio), read once into a directory that every part of whet loads.

A file's weights are dequantised to float32 exactly as stored, its tokenizer and chat template taken from its metadata,
and both kept in the user's cache under the SHA-256 of the file's content. `transformers` knows the architectures and
`gguf` the formats; source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whet.errors import MissingExtraError, ModelLoadError
from whet.system.files import replace_directory, user_cache, write_whole

MAGIC = b"GGUF"
SOURCE = "gguf.json"
"""In a converted directory: the file that it was made from."""
_log = logging.getLogger(__name__)


def converted(file: Path) -> Path | None:
    """The directory that was made from `file`, None if there is none yet. Raises `ModelLoadError` for another kind."""
    _check(file)
    directory = _directory(_digest(file))
    return directory if (directory / SOURCE).is_file() else None


def convert(file: Path) -> Path:
    """The directory made from `file`, made now unless the cache has it. Raises `ModelLoadError`, `MissingExtraError`.

    Takes memory for all of its values in float32, and 4 bytes for each on disk.
    """
    _check(file)
    digest = _digest(file)
    directory = _directory(digest)
    if (directory / SOURCE).is_file():
        return directory
    with _alone(directory):
        if not (directory / SOURCE).is_file():
            fields = _fields(file)
            head_width = _head_width(file, fields)
            _log.warning("%s: dequantising it once, into %s", file, directory)
            replace_directory(directory, lambda target: _write(file, digest, fields, head_width, target))
    return directory


def conversions() -> Iterator[tuple[Path, Path]]:
    """The file and the directory of each conversion that the cache has."""
    for source in sorted(user_cache("gguf").glob(f"*/{SOURCE}")):
        if (file := source_of(source.parent)) is not None:
            yield file, source.parent


def source_of(directory: Path) -> Path | None:
    """The GGUF file that a directory was made from; None for a model that never was one."""
    try:
        return Path(json.loads((directory / SOURCE).read_text(encoding="utf-8"))["file"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{directory / SOURCE} cannot be read ({error}).") from None


def _check(file: Path) -> None:
    try:
        with file.open("rb") as stream:
            start = stream.read(len(MAGIC))
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error.strerror}") from None
    if start != MAGIC:
        raise ModelLoadError(f"{file} is not a GGUF file: it does not begin with {MAGIC.decode()}.")


def _directory(digest: str) -> Path:
    return user_cache("gguf") / digest[:16]


def _digest(file: Path) -> str:
    """SHA-256 of the content; kept with size and time of change, for a file of gigabytes is not read at every start."""
    path = file.resolve()
    known = user_cache("gguf") / "digests" / f"{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.json"
    state = [path.stat().st_size, path.stat().st_mtime_ns]
    try:
        saved = json.loads(known.read_text(encoding="utf-8"))
        if saved["state"] == state:
            return str(saved["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    with contextlib.suppress(OSError):  # another user's cache, or a full disk: it is read again at the next start
        write_whole(known, json.dumps({"file": str(path), "state": state, "sha256": digest}))
    return digest


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process at a time converts; the others wait and find what it made."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = directory.with_suffix(".lock").open("w")
    except PermissionError:  # another user's, who does not wait for this process either
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fields(file: Path) -> dict[str, Any]:
    """The metadata of a file that is whole and holds a model."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading a GGUF file", "train") from error
    try:
        fields = {name: field.contents() for name, field in GGUFReader(file).fields.items() if len(field.data) == 1}
    except Exception as error:  # a torn file raises whatever the parser stumbles over
        raise ModelLoadError(f"{file} is cut off or damaged ({_reason(error)}); download it again") from None
    if fields.get("general.type", "model") != "model":
        raise ModelLoadError(
            f"{file} holds no model but a GGUF file of type {fields['general.type']!r}; give the file of the whole "
            "model (an adapter is read from its PEFT directory)"
        )
    return fields


def _head_width(file: Path, fields: dict[str, Any]) -> int | None:
    """Width of an attention head as the file has it; None where `transformers` reads it, or the file has none.

    `transformers` (5.23) ignores `attention.key_length` for these: it takes 128 for Qwen3, and the hidden size over the
    number of heads (Llama, Mistral: or the rotated width) for the others.
    """
    architecture = fields.get("general.architecture")
    if architecture not in ("llama", "mistral", "qwen2", "qwen3"):
        return None
    names = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    keys, values, rotated = (fields.get(f"{architecture}.{name}") for name in names)
    if keys is None:
        return None
    if values not in (None, keys):
        raise ModelLoadError(
            f"{file}: attention keys of width {keys} and values of width {values}; only equal widths are read"
        )
    if rotated not in (None, keys):
        raise ModelLoadError(
            f"{file}: {rotated} of {keys} dimensions of a head are rotated; only heads rotated as a whole are read"
        )
    return int(keys)


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _write(file: Path, digest: str, fields: dict[str, Any], head_width: int | None, target: Path) -> None:
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging as transformers_logging

        from whet.inference.weights.gguf_positions import amend
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading a GGUF file", "train") from error
    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what is wrong is raised, as one line
    given: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    try:  # one of its bars has no switch
        with contextlib.redirect_stderr(io.StringIO()):
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **given)
            config = AutoConfig.from_pretrained(file.parent, **given)
            if head_width is not None:
                config.head_dim = head_width
            amend(config, file, fields)
            model: Any = AutoModelForCausalLM.from_pretrained(file.parent, config=config, dtype=torch.float32, **given)
            model.hf_quantizer = None  # the values are plain from here on
            if hasattr(model.config, "quantization_config"):
                del model.config.quantization_config
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
            for weights in target.glob("*.safetensors"):  # written for this user alone, unlike all else
                shutil.copymode(target / "config.json", weights)
    except ModelLoadError:
        raise
    except OSError as error:
        raise ModelLoadError(f"{file}: its float32 copy cannot be written to {target.parent}: {error}") from None
    except Exception as error:  # metadata of a kind that it does not know raises anything
        raise ModelLoadError(f"{file}: transformers cannot read this GGUF file ({_reason(error)})") from None
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
    if not tokenizer.chat_template:
        _log.warning("%s has no chat template: a chat with this model needs one in %s", file, target)
    write_whole(target / SOURCE, json.dumps({"file": str(file.resolve()), "sha256": digest}, indent=2) + "\n")
