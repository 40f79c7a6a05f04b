"""Models in GGUF files (llama.cpp, Ollama, LM Studio), read once into a directory that every part of whet loads.

A file's config, tokenizer and chat template are taken from its metadata and kept in the user's cache under the SHA-256
of the file's content, with an index of its tensors. Its weights are dequantised to float32, exactly as stored and one
tensor after the other, where something first computes with them in that form (`gguf_tensors.py`); of architectures
that it does not know at once, by `transformers`. Source of the format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whet.errors import MissingExtraError, ModelLoadError
from whet.system.files import replace_directory, user_cache, write_whole

if TYPE_CHECKING:
    from gguf import GGUFReader

MAGIC = b"GGUF"
SOURCE, INDEX = "gguf.json", "gguf_tensors.json"
"""In a converted directory: the file that it was made from, and where in it the tensors are."""
_FORM = 2  # of a converted directory
_log = logging.getLogger(__name__)


def converted(file: Path) -> Path | None:
    """The directory that was made from `file`, None if there is none yet. Raises `ModelLoadError` for another kind."""
    _check(file)
    digest = _digest(file)
    directory = _directory(digest)
    if not _made(directory):
        return None
    if not gguf_source(directory).is_file():  # moved since
        write_whole(directory / SOURCE, _written(file, digest))
    return directory


def convert(file: Path) -> Path:
    """The directory made from `file`, made now unless the cache has it. Raises `ModelLoadError`, `MissingExtraError`.

    It has no weights yet where they can be read from the file itself.
    """
    if (known := converted(file)) is not None:
        return known
    digest = _digest(file)
    directory = _directory(digest)
    with alone(directory):
        if not _made(directory):
            reader, fields = _open(file)
            head_width = _head_width(file, fields)
            replace_directory(directory, lambda target: _write(file, digest, reader, fields, head_width, target))
    return directory


def prepared(file: Path) -> Path | None:
    """The directory made from `file`, made now where that reads none of its weights; None where it would."""
    from whet.inference.weights.gguf_tensors import KNOWN

    directory = converted(file)
    return convert(file) if directory is None and _open(file)[1].get("general.architecture") in KNOWN else directory


def indexed(directory: Path) -> list[tuple[int, str]]:
    """Number of values and format of each tensor of the file that a directory was made from; empty without an index."""
    try:
        table = json.loads((directory / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [(math.prod(entry["shape"]), entry["format"]) for entry in table.values()]


def conversions() -> Iterator[tuple[Path, Path]]:
    """The file and the directory of each conversion that the cache has."""
    for source in sorted(user_cache("gguf").glob(f"*/{SOURCE}")):
        if (file := source_of(source.parent)) is not None:
            yield file, source.parent


def gguf_source(directory: Path) -> Path:
    """`source_of` a directory that was made from a file."""
    file = source_of(directory)
    assert file is not None, f"{directory} was made from no GGUF file"
    return file


def _written(file: Path, digest: str) -> str:
    return json.dumps({"file": str(file.resolve()), "sha256": digest, "form": _FORM}, indent=2) + "\n"


def _made(directory: Path) -> bool:
    """Whether a directory is there, and as this version of whet makes it."""
    try:
        return bool(json.loads((directory / SOURCE).read_text(encoding="utf-8"))["form"] == _FORM)
    except (OSError, ValueError, KeyError, TypeError):
        return False


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
def alone(directory: Path) -> Iterator[None]:
    """One process at a time fills a directory of the cache; the others wait and find what it made."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = directory.with_suffix(".lock").open("w")
    except PermissionError:  # another user's, who does not wait for this process either
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _open(file: Path) -> tuple[GGUFReader, dict[str, Any]]:
    """A file that is whole and holds a model, and its metadata."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading a GGUF file", "train") from error
    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items() if len(field.data) == 1}
    except Exception as error:  # a torn file raises whatever the parser stumbles over
        raise ModelLoadError(f"{file} is cut off or damaged ({_reason(error)}); download it again") from None
    if fields.get("general.type", "model") != "model":
        raise ModelLoadError(
            f"{file} holds no model but a GGUF file of type {fields['general.type']!r}; give the file of the whole "
            "model (an adapter is read from its PEFT directory)"
        )
    return reader, fields


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


def _write(
    file: Path, digest: str, reader: GGUFReader, fields: dict[str, Any], head_width: int | None, target: Path
) -> None:
    try:
        from transformers import AutoConfig, AutoTokenizer
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
            _write_model(file, reader, fields, config, given, target)
            tokenizer.save_pretrained(target)
    except ModelLoadError:
        raise
    except OSError as error:
        raise ModelLoadError(f"{file}: what it holds cannot be written to {target.parent}: {error}") from None
    except Exception as error:  # metadata of a kind that it does not know raises anything
        raise ModelLoadError(f"{file}: transformers cannot read this GGUF file ({_reason(error)})") from None
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
    if not tokenizer.chat_template:
        _log.warning("%s has no chat template: a chat with this model needs one in %s", file, target)
    write_whole(target / SOURCE, _written(file, digest))


def _write_model(
    file: Path, reader: GGUFReader, fields: dict[str, Any], config: Any, given: dict[str, Any], target: Path
) -> None:
    """The config with an index of the file's tensors, or of an architecture that has none the whole model."""
    import torch
    from transformers import AutoModelForCausalLM

    from whet.inference.weights.gguf_tensors import KNOWN, index_tensors, write_index

    if fields["general.architecture"] in KNOWN:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        names = [name for name, _ in model.named_parameters()]
        index = index_tensors(reader, fields["general.architecture"], names, config)
        if missing := [name for name in names if name not in index]:
            raise ModelLoadError(f"{file} lacks {missing[0]!r}, which its model needs, and {len(missing) - 1} more")
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(target)
        model.generation_config.save_pretrained(target)
        write_index(target, index)
        return
    model = AutoModelForCausalLM.from_pretrained(file.parent, config=config, dtype=torch.float32, **given)
    model.hf_quantizer = None  # the values are plain from here on
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    for weights in target.glob("*.safetensors"):  # written for this user alone, unlike all else
        shutil.copymode(target / "config.json", weights)
