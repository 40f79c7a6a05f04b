"""Which parameters a learner trains, and how they leave it: to engines, to checkpoints, to people.

`Weights` is the seam between training all weights (here) and training a LoRA adapter (`lora.py`); the learner knows
nothing else of the difference. Files that an engine may be reading are written aside and renamed.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from typing import ClassVar, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from whet.errors import RunError
from whet.inference.architecture import Architecture
from whet.inference.plain.family import describe
from whet.inference.plain.weights import in_layers
from whet.inference.protocol import WeightUpdate
from whet.inference.weights.model_weights import packed_tensors
from whet.inference.weights.packed_file import take_unread, write_packed
from whet.rl.learner.forward.moe import as_checkpoint
from whet.rl.learner.masters import Masters
from whet.rl.learner.whole import Whole
from whet.rl.storage.checkpoints import WEIGHTS

PublishFormat = Literal["packed", "checkpoint"]
"""How all weights reach an engine: as the embedded one computes with them, or under the names of a checkpoint."""

KEPT_PUBLICATIONS = 2
"""The newest, and the one before it, which an engine may still be reading."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)


class Weights(ABC):
    """The parameters that are trained, and the ways out of the learner."""

    FILE: ClassVar[str]
    """What `save` writes."""

    def __init__(self, model: PreTrainedModel, source: Path, whole: Whole | None = None) -> None:
        """`source` is where the model came from; `whole` gathers parameters that are divided among ranks."""
        self._whole = whole or Whole()
        self.model = model
        """The decoder with its output head, projections as they are called in training."""
        self._source = source

    @abstractmethod
    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """What is trained, in a fixed order."""

    @abstractmethod
    def publish(self, directory: Path, version: int) -> WeightUpdate: ...
    @abstractmethod
    def export(self, directory: Path, dtype: torch.dtype) -> None: ...
    @abstractmethod
    def export_merged(self, directory: Path, dtype: torch.dtype) -> None: ...

    def updated(self) -> None:
        """The trained parameters have other values now."""
        return None

    def hidden_parameters(self) -> set[str]:
        """Names of those that belong to decoder layers (not embeddings, not the head)."""
        return {name for name, _ in self.parameters() if in_layers(name)}

    def save(self, directory: Path) -> None:
        write_tensors(directory / self.FILE, {name: p.detach() for name, p in self.parameters()})

    def load(self, directory: Path) -> None:
        copy_in(dict(self.parameters()), directory / self.FILE)
        self.updated()


class FullWeights(Weights):
    """Every parameter of the model."""

    FILE = WEIGHTS

    def __init__(
        self,
        model: PreTrainedModel,
        source: Path,
        publish_dtype: torch.dtype,
        dtype: torch.dtype = torch.float32,
        publish_format: PublishFormat = "packed",
        whole: Whole | None = None,
    ) -> None:
        """Engines are given weights in `publish_dtype`; the forward pass reads matrices in `dtype`."""
        super().__init__(model, source, whole)
        self._masters = Masters(model.named_parameters(), dtype)
        self._arch = describe(source)
        self._publish_dtype = publish_dtype
        self._publish_format = publish_format

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        return self._masters.parameters

    def updated(self) -> None:
        self._masters.round()

    def publish(self, directory: Path, version: int) -> WeightUpdate:
        """As `publish_format` says. The embedded engine has nothing to do but to map a packed file.

        They are those that the forward pass reads, not their masters: engine and learner round the same numbers. It is
        written over an older one that no engine reads any more (see `packed_file.py`).
        """
        if self._publish_format == "checkpoint":
            return self._publish_checkpoint(directory, version)
        path, pattern = directory / f"weights-{version:08d}.packed", "weights-*.packed"
        named, dtype = {name: p.detach() for name, p in self.model.named_parameters()}, self._publish_dtype
        tensors: Iterable[tuple[str, Tensor]] = ((name, tensor.to(dtype)) for name, tensor in named.items())
        if isinstance(self._arch, Architecture):
            tensors = packed_tensors(as_checkpoint(named), self._arch, dtype=dtype, device=self.model.device)

        def write(aside: Path) -> None:
            for older in published(directory, pattern)[:-1]:  # the newest may be about to be read
                if take_unread(older, aside):
                    break
            write_packed(aside, tensors)

        write_aside(path, write)
        forget_older(directory, pattern)
        return WeightUpdate(version=version, path=path, kind="packed")

    def _publish_checkpoint(self, directory: Path, version: int) -> WeightUpdate:
        path = directory / f"weights-{version:08d}.safetensors"
        named = {name: p.detach().to(self._publish_dtype) for name, p in self.model.named_parameters()}
        tensors = _as_checkpoint(self.model, named, self._source)
        write_aside(path, lambda aside: write_tensors(aside, tensors))
        forget_older(directory, "weights-*.safetensors")
        return WeightUpdate(version=version, path=path, kind="model")

    def export(self, directory: Path, dtype: torch.dtype) -> None:
        # named_parameters gives a tied head once, under the embedding's name, as checkpoints have it.
        tensors = {name: p.detach().to(dtype) for name, p in self.parameters()}
        write_model(directory, self.model, tensors, self._source)

    export_merged = export


def write_model(directory: Path, model: PreTrainedModel, tensors: dict[str, Tensor], source: Path) -> None:
    """A `transformers` checkpoint of `model` with these weights, and the tokenizer files of `source`."""
    directory.mkdir(parents=True, exist_ok=True)
    config = copy(model.config)
    config.dtype = next(iter(tensors.values())).dtype
    config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    write_tensors(directory / "model.safetensors", _as_checkpoint(model, tensors, source))
    copy_tokenizer(source, directory)


def _as_checkpoint(model: PreTrainedModel, tensors: dict[str, Tensor], source: Path) -> dict[str, Tensor]:
    """The tensors under the names that checkpoints of the model's family have."""
    if isinstance(describe(source), Architecture):
        return as_checkpoint(tensors)
    from transformers.core_model_loading import revert_weight_conversion

    saved = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    renamed = {name.replace(".base_layer.", "."): buffer for name, buffer in buffers.items()}
    reverted: dict[str, Tensor] = revert_weight_conversion(model, renamed | tensors)
    return reverted


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file. Raises `OSError` where the disk does not take it, as any other write does."""
    try:
        # transformers asks for the metadata before it reads a file
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from None


def copy_in(parameters: dict[str, nn.Parameter], path: Path) -> None:
    """Fill parameters from a file that holds exactly these names and shapes."""
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot read the saved weights: {error}") from None
    expected = {name: tuple(p.shape) for name, p in parameters.items()}
    if (found := {name: tuple(t.shape) for name, t in tensors.items()}) != expected:
        wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        raise RunError(
            f"{path} was saved from another model: {len(wrong)} tensors differ, the first is {wrong[0]} "
            f"(saved {found.get(wrong[0])}, expected {expected.get(wrong[0])}). "
            "Resume with the model the run began with."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])


def write_aside(path: Path, write: Callable[[Path], None]) -> None:
    """A reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    try:
        write(aside)
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(aside, path)
    except OSError as error:
        _delete(aside)
        raise RunError(f"{path}: cannot hand the weights over: {error}. Is the disk (or shared memory) full?") from None


def published(directory: Path, pattern: str) -> list[Path]:
    """What was published, the newest last."""
    return sorted(directory.glob(pattern))


def forget_older(directory: Path, pattern: str) -> None:
    for old in published(directory, pattern)[:-KEPT_PUBLICATIONS]:
        _delete(old)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy_tokenizer(source: Path, directory: Path, names: Iterable[str] = TOKENIZER_FILES) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)
