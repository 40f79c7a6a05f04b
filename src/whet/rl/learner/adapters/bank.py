"""Many LoRA adapters over one frozen base model, computed together: each as it would be alone.

    pass       pieces of work of any adapters, laid out one after the other (`layout.py`)
    forward    the base for all rows at once, adapters for their own rows (`layers.py`)
    losses     of each work apart, from its logprobs to their gradient
    backward   once for all rows; gradients of each work go to a vector of its own
    at last    what is finite is added to the gradients of its adapter; what is not is that work's error

On a CPU in float32, losses, logprobs, gradients and weights are bit for bit those of the same work alone, where the
base is dense: rows, shapes of products and the order of sums depend on a work's own sequences only. Experts, and
matrices in the blocks of a file, are multiplied with in shapes that depend on all rows: equal to rounding.

Dropout is drawn for work with a backward pass, and its logprobs are those with dropout; other work has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whet.errors import ConfigError, RunError, TrainingError, WhetError
from whet.inference.plain.weights import projections
from whet.inference.weights.adapters import UNEMBEDDING
from whet.rl.learner.adapters.adapter import Sizes, TrainedAdapter, checked, numbers_of, read_training, spec_of
from whet.rl.learner.adapters.layers import AdaptedLinear, DropoutDraw, LayerPart, tile_of
from whet.rl.learner.adapters.layout import Piece, lay_out, pieces_of
from whet.rl.learner.adapters.logits import Targets, target_logprobs
from whet.rl.learner.adapters.work import AdamParams, AdapterOutput, AdapterSpec, AdapterWork, Datum
from whet.rl.learner.config import LearnerConfig
from whet.rl.learner.forward.decoder import hidden_states
from whet.rl.learner.lora import OF_EXPERTS
from whet.rl.learner.weights import copy_tokenizer

_NUMBERS_KEPT = 4
"""Of each of an adapter's numbers: itself, its gradient, and AdamW's two moments, in float32."""


class AdapterBank:
    """Adapters by name; called from one thread. Adapters that a call names and the bank does not have are a
    `RunError`."""

    def __init__(self, model: PreTrainedModel, source: Path, computation: LearnerConfig) -> None:
        """Takes `model` over, on its device, and freezes it; `source` is where it came from. `computation` is settled.

        Its layers are those of a family that whet's own forward pass computes (`make.make_bank` checks it).
        """
        self._model: Any = model.eval().requires_grad_(False)
        self._source = source
        self._computation = computation
        self._device = model.device
        self._dtype: torch.dtype = getattr(torch, computation.dtype)
        """Of products."""
        self._tile = tile_of(model.device, self._dtype)
        self._adapters: dict[str, TrainedAdapter] = {}
        self._layers: dict[str, AdaptedLinear] = {}
        stacked = any(name.endswith(".experts") for name, _ in model.named_modules())
        for name, module in projections(model).items():
            owner, _, attribute = name.rpartition(".")
            if not (stacked and attribute in OF_EXPERTS):
                self._layers[name] = AdaptedLinear(module)
                setattr(model.get_submodule(owner), attribute, self._layers[name])
        self._layers[UNEMBEDDING] = AdaptedLinear(self._model.lm_head)
        self._sizes = {name: layer.sizes for name, layer in self._layers.items()}

    @property
    def names(self) -> list[str]:
        """Of all adapters, in the order in which they were made."""
        return list(self._adapters)

    @property
    def targets(self) -> dict[str, tuple[str, ...]]:
        """What a spec's targets may be: names of `attention`, of `mlp` and of the `unembedding`."""
        named: dict[str, dict[str, None]] = {"attention": {}, "mlp": {}, "unembedding": {UNEMBEDDING: None}}
        for name in filter(UNEMBEDDING.__ne__, self._layers):
            owner, _, target = name.rpartition(".")
            named["attention" if owner.endswith("attn") else "mlp"][target] = None
        return {part: tuple(targets) for part, targets in named.items()}

    def create(self, name: str, spec: AdapterSpec) -> None:
        """A new adapter that adds nothing yet. Raises `ConfigError` for a name that is taken, and for a spec that no
        adapter of this base can have."""
        if name in self._adapters:
            raise ConfigError(f"there is an adapter {name!r} already; remove it, or choose another name.")
        checked(name, spec, (layer.rpartition(".")[2] for layer in self._sizes))
        self._adapters[name] = TrainedAdapter(name, spec, self._sizes_of(spec), self._device)

    def remove(self, name: str) -> None:
        """Forget an adapter and free its memory."""
        self._adapter(name)
        del self._adapters[name]

    def bytes_of(self, spec: AdapterSpec) -> int:
        """What an adapter takes while it is trained: weights, gradients and AdamW's moments.

        While a call computes gradients it takes as many again as its weights. Raises `ConfigError` as `create` does.
        """
        checked("new", spec, (layer.rpartition(".")[2] for layer in self._sizes))
        return numbers_of(spec, self._sizes_of(spec)) * _NUMBERS_KEPT * torch.float32.itemsize

    def forward_backward(self, works: Sequence[AdapterWork]) -> list[AdapterOutput | WhetError]:
        """What each piece of work is, or why there is nothing: then it has changed no gradient."""
        jobs: list[_Job | WhetError] = []
        for work in works:
            try:
                jobs.append(self._job(work))
            except WhetError as error:
                jobs.append(error)
        waiting = [(job, piece) for job in jobs if isinstance(job, _Job) for piece in job.pieces]
        for together in _passes(waiting, self._computation.tokens_at_once):
            going = [(job, piece) for job, piece in together if job.fault is None and not job.alone]
            try:
                self._pass(going)
            except (MemoryError, RuntimeError):  # of memory, mostly; gradients may be there in part
                for job in {id(job): job for job, _ in going}.values():
                    self._alone(job)
        return [job if isinstance(job, WhetError) else job.finished() for job in jobs]

    def optim_step(self, name: str, params: AdamParams) -> dict[str, float]:
        """Apply an adapter's gradients by AdamW and clear them; `grad_norm` is theirs before they were clipped.

        Without gradients nothing moves. Raises `ConfigError` for parameters that AdamW cannot have, `TrainingError`
        for gradients that are not finite: weights are left as they were.
        """
        return self._adapter(name).step(params)

    def version(self, name: str) -> int:
        """Steps that an adapter has made."""
        return self._adapter(name).version

    def save(self, name: str, directory: Path, optimizer: bool = True) -> None:
        """All that an adapter goes on from, or without `optimizer` its weights: a PEFT directory that is whole or not
        there. Gradients that were not applied are left out. Raises `RunError` where the disk does not take it."""
        self._adapter(name).save(directory, self._source, optimizer=optimizer)

    def load(self, name: str, directory: Path, optimizer: bool = True) -> None:
        """What `save` wrote, into the adapter of this name and shape, or as a new one. It goes on bit for bit; without
        `optimizer` with these weights from the beginning. Gradients are cleared.

        Raises `RunError` for what is damaged or of another shape, and `ConfigError` where the base has no such layers.
        """
        made = name not in self._adapters
        if made:
            self.create(name, spec_of(read_training(directory)))
        try:
            self._adapters[name].load(directory, optimizer=optimizer)
        except WhetError:
            if made:
                del self._adapters[name]
            raise

    def export(self, name: str, directory: Path) -> None:
        """A directory that `peft` loads, with the base's tokenizer."""
        self._adapter(name).export(directory, self._source)
        copy_tokenizer(self._source, directory)

    def _adapter(self, name: str) -> TrainedAdapter:
        if name not in self._adapters:
            raise RunError(f"there is no adapter {name!r}; there are: {', '.join(self._adapters) or 'none'}.")
        return self._adapters[name]

    def _sizes_of(self, spec: AdapterSpec) -> Sizes:
        return {name: sizes for name, sizes in self._sizes.items() if name.rpartition(".")[2] in spec.targets}

    def _job(self, work: AdapterWork) -> _Job:
        adapter = self._adapter(work.adapter)
        words = min(self._sizes[UNEMBEDDING][1], self._model.get_input_embeddings().num_embeddings)
        for number, datum in enumerate(work.data):
            _check(datum, words, f"adapter {work.adapter!r}, sequence {number}")
        pieces = pieces_of([datum.ids for datum in work.data], self._computation.tokens_at_once)
        first_draw = adapter.draws
        if work.backward and adapter.spec.dropout:
            adapter.draws += len(pieces)
        return _Job(work, adapter, pieces, first_draw)

    def _alone(self, job: _Job) -> None:
        """Compute a piece of work from its beginning, without others: what failed may be theirs."""
        job.restart()
        try:
            for piece in job.pieces:
                if job.fault is None:
                    self._pass([(job, piece)])
        except (MemoryError, RuntimeError) as error:
            job.fail(f"{type(error).__name__}: {error}")

    def _pass(self, together: Sequence[tuple[_Job, Piece]]) -> None:
        """Compute pieces of work at once; their jobs take what comes of it."""
        if not together:
            return
        made = lay_out([piece for _, piece in together], self._tile)
        for index, (job, piece) in enumerate(together):
            for name, part in job.parts(index, piece, self._dtype).items():
                self._layers[name].parts.append(part)
        for layer in self._layers.values():
            layer.spans = made.spans
        training = any(job.work.backward for job, _ in together)
        try:
            with (
                torch.set_grad_enabled(training),
                torch.autocast(
                    self._device.type, torch.bfloat16, enabled=self._dtype == torch.bfloat16, cache_enabled=False
                ),
            ):
                hidden_TD = hidden_states(
                    self._model.model,
                    torch.from_numpy(made.ids_T).to(self._device),
                    made.layout,
                    recompute=self._computation.activation_checkpointing,
                )
                targets = [job.targets_of(piece) for job, piece in together]
                logprobs = target_logprobs(self._layers[UNEMBEDDING], hidden_TD, made.spans, targets, self._tile)
                outputs: list[tuple[Tensor, Tensor]] = []
                for (job, piece), logprobs_N in zip(together, logprobs, strict=True):
                    if (slope_N := job.take(piece, logprobs_N)) is not None:
                        outputs.append((logprobs_N, slope_N))
            if outputs:
                torch.autograd.backward([y for y, _ in outputs], [slope for _, slope in outputs])
        finally:
            for layer in self._layers.values():
                layer.parts = []


@dataclass(slots=True, eq=False)
class _Job:
    """A piece of work while it is computed."""

    work: AdapterWork
    adapter: TrainedAdapter
    pieces: list[Piece]
    first_draw: int
    fault: TrainingError | None = None
    alone: bool = False
    """Whether it was computed without others, after a pass that failed."""
    gradient: Tensor | None = None
    gradients: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Its parts by layer."""
    logprobs: dict[int, Any] = field(default_factory=dict)
    sums: dict[int, dict[str, float]] = field(default_factory=dict)
    """Of each sequence, its loss with its diagnostics."""

    def parts(self, index: int, piece: Piece, dtype: torch.dtype) -> dict[str, LayerPart]:
        """What the adapter adds to each of its layers, for the piece of this index in a pass."""
        adapter, flat = self.adapter, self.adapter.flat.detach()
        if self.work.backward and self.gradient is None:
            self.gradient = torch.zeros_like(flat)
            self.gradients = adapter.views(self.gradient)
        factors = adapter.factors if dtype == torch.float32 else adapter.views(flat.to(dtype))
        draw = self.first_draw + self.pieces.index(piece)
        return {
            name: LayerPart(index, down, up, adapter.scale, self.gradients.get(name), self._dropout(draw, name))
            for name, (down, up) in factors.items()
        }

    def _dropout(self, draw: int, layer: str) -> DropoutDraw | None:
        spec = self.adapter.spec
        if not (self.work.backward and spec.dropout):
            return None
        return DropoutDraw(spec.dropout, f"{spec.seed} {draw} {layer}")

    def targets(self, number: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.asarray(self.work.data[number].inputs["target_tokens"]).astype(np.int64)

    def targets_of(self, piece: Piece) -> Targets:
        """Those of the piece's sequences, one sequence after the other."""
        rows, tokens = [], []
        for number, path in zip(piece.numbers, piece.paths, strict=True):
            target_N = self.targets(number).reshape(len(path), -1)
            rows.append(np.repeat(path, target_N.shape[1]))
            tokens.append(target_N.reshape(-1))
        return Targets(np.concatenate(rows), np.concatenate(tokens))

    def take(self, piece: Piece, logprobs_N: Tensor) -> Tensor | None:
        """The losses of the piece's sequences; the gradient of their sum, where there is one to go on with."""
        leaf_N = logprobs_N.detach().requires_grad_(self.work.backward)
        try:
            with torch.set_grad_enabled(self.work.backward), torch.autocast(leaf_N.device.type, enabled=False):
                return self._losses(piece, leaf_N)
        except WhetError as error:
            self.fail(str(error))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            self.fail(f"{type(error).__name__}: {error}")
        return None

    def _losses(self, piece: Piece, leaf_N: Tensor) -> Tensor | None:
        losses, begin = [], 0
        for number in piece.numbers:
            datum, shape = self.work.data[number], self.targets(number).shape
            own = leaf_N[begin : begin + math.prod(shape)].view(shape)
            begin += math.prod(shape)
            inputs = {name: torch.tensor(value, device=own.device) for name, value in datum.inputs.items()}
            loss, diagnostics = self.work.loss(own, inputs)
            losses.append(loss)
            self.logprobs[number] = own.detach().cpu().numpy()
            self.sums[number] = {"": loss.item(), **{name: value.item() for name, value in diagnostics.items()}}
            if not math.isfinite(self.sums[number][""]):
                diverged = not math.isfinite(own.detach().sum())
                cause = "the logprobs are not, so the weights have diverged" if diverged else "logprobs are"
                raise TrainingError(f"the loss of sequence {number} is not finite ({cause})")
        total = torch.stack(losses).sum()
        if not total.requires_grad:
            return None
        (slope_N,) = torch.autograd.grad(total, leaf_N, allow_unused=True)
        if slope_N is not None and not math.isfinite(slope_N.sum()):
            raise TrainingError("the gradient of the loss is not finite")
        return slope_N

    def fail(self, why: str) -> None:
        self.fault = TrainingError(f"adapter {self.adapter.name!r}: {why}. No gradient was added; look at the data.")

    def restart(self) -> None:
        self.alone = True
        self.gradient, self.gradients = None, {}

    def finished(self) -> AdapterOutput | WhetError:
        """What the whole work came to; its gradients are added to the adapter's."""
        if self.fault is None and self.gradient is not None and not math.isfinite(self.gradient.sum()):
            self.fail("the gradient is not finite")
        if self.fault is not None:
            return self.fault
        if self.gradient is not None:
            self.adapter.add_gradient(self.gradient)
        sums: dict[str, float] = {}
        order = range(len(self.work.data))
        for number in order:
            for key, value in self.sums[number].items():
                sums[key] = sums.get(key, 0.0) + value
        return AdapterOutput([self.logprobs[number] for number in order], sums.pop("", 0.0), sums)


def _passes(waiting: Sequence[tuple[_Job, Piece]], token_budget: int) -> Iterator[list[tuple[_Job, Piece]]]:
    """Pieces that are computed at once: at most so many tokens, or one piece."""
    together: list[tuple[_Job, Piece]] = []
    tokens = 0
    for job, piece in waiting:
        if together and tokens + len(piece.ids_T) > token_budget:
            yield together
            together, tokens = [], 0
        together.append((job, piece))
        tokens += len(piece.ids_T)
    if together:
        yield together


def _check(datum: Datum, words: int, where: str) -> None:
    """Raise `TrainingError` for what would disturb others, or could not be computed."""
    targets = datum.inputs.get("target_tokens")
    if targets is None or not len(datum.ids):
        raise TrainingError(f"{where}: it needs at least one token, and target_tokens.")
    shape = np.shape(targets)
    if shape[:1] != (len(datum.ids),) or len(shape) > 2 or not math.prod(shape):
        raise TrainingError(f"{where}: {len(datum.ids)} tokens and target_tokens of shape {shape}; one row each.")
    for what, ids in (("tokens", np.asarray(datum.ids)), ("target_tokens", np.asarray(targets))):
        if ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= words:
            raise TrainingError(f"{where}: its {what} have to be whole numbers from 0 to {words - 1}.")
    for name, value in datum.inputs.items():
        if np.shape(value) != shape:
            raise TrainingError(f"{where}: {name} has shape {np.shape(value)}, target_tokens {shape}; they are equal.")
