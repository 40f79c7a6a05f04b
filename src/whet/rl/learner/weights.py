"""Which parameters a learner trains, and how they leave it: to engines, to checkpoints, to people.

`Weights` is the seam between training all weights (here) and training a LoRA adapter (`lora.py`); the learner knows
nothing else of the difference. Files that an engine may be reading are written aside and renamed.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import ClassVar, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from whet.errors import RunError
from whet.inference.architecture import Architecture
from whet.inference.plain.family import describe
from whet.inference.plain.weights import in_layers
from whet.inference.protocol import WeightUpdate
from whet.inference.weights.model_weights import packed_tensors
from whet.inference.weights.packed_file import take_unread, write_packed
from whet.inference.weights.safetensors_files import TensorStream, write_tensors
from whet.rl.learner.forward.decoder import as_checkpoint
from whet.rl.learner.optim import Masters
from whet.rl.learner.whole import Whole, WholeTensors
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
        self.write(dict(self.parameters()), directory / self.FILE)

    def load(self, directory: Path) -> None:
        self.read(dict(self.parameters()), directory / self.FILE)
        self.updated()

    def write(self, named: Mapping[str, Tensor], path: Path) -> None:
        """Tensors that are held as the model's are."""
        stream = self._stream(WholeTensors(named, self._gather(named)))
        self._whole.write(lambda: write_tensors(path, stream), stream.tensors, f"writing {path.name}")

    def read(self, named: Mapping[str, Tensor], path: Path) -> None:
        """What `write` has written."""
        copy_in(named, path, self._whole)

    @torch.no_grad()
    def fill(self, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor], share: float = 1.0) -> None:
        """Copy numbers, or go that share of the way; autograd, which may have kept the tensors, does not see it."""
        for name, tensor in tensors.items():
            own, value = self._whole.own(tensor.data), self._whole.own(values[name].data)
            own.copy_(value) if share == 1 else own.lerp_(value, share)

    def _gather(self, named: Mapping[str, Tensor]) -> Callable[[str], Tensor]:
        return lambda name: self._whole.gather(named[name], name)

    def _stream(self, tensors: WholeTensors) -> TensorStream:
        return TensorStream.of(tensors.described, tensors.__getitem__)


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
        """Engines are given weights in `publish_dtype`; the forward pass reads matrices in `dtype`. Those that are
        divided among ranks are all float32, and read in `dtype` when they are gathered."""
        super().__init__(model, source, whole)
        self._masters = Masters(model.named_parameters(), torch.float32 if self._whole.divided else dtype)
        self._dtype = dtype
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
        tensors = self._packed()

        def write() -> None:
            write_aside(path, write_file)
            forget_older(directory, pattern)

        def write_file(aside: Path) -> None:
            for older in published(directory, pattern)[:-1]:  # the newest may be about to be read
                if take_unread(older, aside):
                    break
            write_packed(aside, tensors)

        self._whole.write(write, tensors, "publishing weights")
        return WeightUpdate(version=version, path=path, kind="packed")

    def _packed(self) -> Iterator[tuple[str, Tensor]]:
        named = self._read()
        if isinstance(self._arch, Architecture):
            whole = WholeTensors(named, self._gather(named), as_checkpoint)
            device = self._whole.gathers_to(self.model)
            return packed_tensors(whole, self._arch, dtype=self._publish_dtype, device=device)
        whole = WholeTensors(named, self._gather(named), dtype=self._publish_dtype)
        return ((name, whole[name]) for name in whole)

    def _read(self) -> dict[str, Tensor]:
        """Parameters as the forward pass reads them, by name."""
        named: dict[str, Tensor] = dict(self.model.named_parameters())
        return {name: p.detach().to(self._dtype) for name, p in named.items()} if self._whole.divided else named

    def _publish_checkpoint(self, directory: Path, version: int) -> WeightUpdate:
        path = directory / f"weights-{version:08d}.safetensors"
        stream = self._checkpoint(self._read(), self._publish_dtype)

        def write() -> None:
            write_aside(path, lambda aside: write_tensors(aside, stream))
            forget_older(directory, "weights-*.safetensors")

        self._whole.write(write, stream.tensors, "publishing weights")
        return WeightUpdate(version=version, path=path, kind="model")

    def export(self, directory: Path, dtype: torch.dtype) -> None:
        # named_parameters gives a tied head once, under the embedding's name, as checkpoints have it.
        stream = self._checkpoint(dict(self.parameters()), dtype)
        self._whole.write(
            lambda: write_model(directory, self.model, stream, dtype, self._source), stream.tensors, "exporting weights"
        )

    def _checkpoint(self, named: Mapping[str, Tensor], dtype: torch.dtype) -> TensorStream:
        return checkpoint_stream(self.model, named, self._gather(named), dtype, self._source)

    export_merged = export


def write_model(
    directory: Path,
    model: PreTrainedModel,
    tensors: TensorStream,
    dtype: torch.dtype,
    source: Path,
    *,
    untied: bool = False,
) -> None:
    """A `transformers` checkpoint of `model` with these weights, and the tokenizer files of `source`; `untied` where
    the output matrix is one of these, and the model's own is its embedding."""
    directory.mkdir(parents=True, exist_ok=True)
    config = copy(model.config)
    config.dtype = dtype
    if untied:
        config.tie_word_embeddings = False
    config.save_pretrained(directory)
    if model.generation_config is not None:
        model.generation_config.save_pretrained(directory)
    write_tensors(directory / "model.safetensors", tensors)
    copy_tokenizer(source, directory)


def checkpoint_stream(
    model: PreTrainedModel,
    parameters: Mapping[str, Tensor],
    gather: Callable[[str], Tensor],
    dtype: torch.dtype,
    source: Path,
) -> TensorStream:
    """The parameters in `dtype`, under the names that checkpoints of the model's family have.

    For models that only transformers' own forward pass runs, all are gathered first, since transformers converts them
    together.
    """
    if isinstance(describe(source), Architecture):
        whole = WholeTensors(parameters, gather, as_checkpoint, dtype)
        return TensorStream.of(whole.described, whole.__getitem__)
    from transformers.core_model_loading import revert_weight_conversion

    tensors = {name: gather(name).to(dtype) for name in parameters}
    saved = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    renamed = {name.replace(".base_layer.", "."): buffer for name, buffer in buffers.items()}
    reverted: dict[str, Tensor] = revert_weight_conversion(model, renamed | tensors)
    return TensorStream.of(reverted, reverted.__getitem__)


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


def forget_published(directory: Path) -> None:
    """Delete all that was published: the engine that had it sleeps, and wakes with newer weights."""
    for pattern in ("weights-*", "adapter-*"):
        for path in published(directory, pattern):
            _delete(path)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy_tokenizer(source: Path, directory: Path, names: Iterable[str] = TOKENIZER_FILES) -> None:
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, directory / name)


def copy_in(parameters: Mapping[str, Tensor], path: Path, whole: Whole) -> None:
    """Fill parameters from a file that holds exactly these names and shapes."""
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            expected = {name: tuple(p.shape) for name, p in parameters.items()}
            if shapes != expected:
                raise _of_another_model(path, shapes, expected)
            for name, parameter in parameters.items():
                own = whole.own(parameter)
                rows = whole.rows(parameter)
                own.copy_(file.get_tensor(name) if rows is None else file.get_slice(name)[rows])
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot read the saved weights: {error}") from None


def _of_another_model(
    path: Path, saved: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> RunError:
    wrong = sorted(name for name in expected.keys() | saved.keys() if expected.get(name) != saved.get(name))
    return RunError(
        f"{path} was saved from another model: {len(wrong)} tensors differ, the first is {wrong[0]} "
        f"(saved {saved.get(wrong[0])}, expected {expected.get(wrong[0])}). "
        "Resume with the model the run began with."
    )
