"""One LoRA adapter that is trained: its two thin matrices of each layer, their gradients, AdamW's state, and its files.

All matrices are views of one vector, so that a step is one operation, whatever the number of layers. A saved adapter is
a PEFT directory, with beside it what training goes on from:

    adapter_config.json, adapter_model.safetensors     as `peft` reads them
    training.json                                      spec, version, and how often dropout was drawn
    optimizer.safetensors                              AdamW's two moments
    manifest.json                                      sizes and hashes of these, written last

Gradients that were not applied are not saved.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import ConfigError, ModelLoadError, RunError, TrainingError
from whet.inference.model_names import ADAPTER_WEIGHTS
from whet.inference.weights.safetensors_files import TensorStream, read_safetensors, write_tensors
from whet.rl.learner.adapters.work import AdamParams, AdapterSpec
from whet.rl.learner.lora import write_adapter
from whet.rl.learner.weights import write_aside
from whet.rl.storage.checkpoints import fault_of, seal

TRAINING, OPTIMIZER = "training.json", "optimizer.safetensors"
MOMENTS = "exp_avg", "exp_avg_sq"

Sizes = Mapping[str, tuple[int, int]]
"""Inputs and outputs of the layers that an adapter is for, by their names in the base model."""


class TrainedAdapter:
    """The matrices of one adapter over layers of these `sizes`, in float32."""

    def __init__(self, name: str, spec: AdapterSpec, sizes: Sizes, device: torch.device) -> None:
        """The first weights are drawn as `peft` draws them, from the adapter's own seed: it adds nothing at first."""
        self.name, self.spec, self._sizes = name, spec, dict(sizes)
        self.version = 0
        """Steps that were made."""
        self.draws = 0
        """Passes that dropout was drawn for."""
        self.flat = nn.Parameter(torch.zeros(numbers_of(spec, sizes), device=device))
        self.gradient: Tensor | None = None
        self._optimizer = torch.optim.AdamW([self.flat], fused=True)
        self.factors = self.views(self.flat.detach())
        """By layer, `down` [r, in] and `up` [out, r]."""
        generator = torch.Generator().manual_seed(spec.seed % (1 << 63))
        for down, _ in self.factors.values():
            drawn = torch.empty(down.shape)
            nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
            down.copy_(drawn)

    @property
    def scale(self) -> float:
        return self.spec.alpha / self.spec.rank

    def views(self, flat: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The matrices, or their gradients, that lie in a vector like `flat`."""
        rank, views, at = self.spec.rank, {}, 0
        for layer, (source, target) in self._sizes.items():
            middle, end = at + rank * source, at + rank * (source + target)
            views[layer] = flat[at:middle].view(rank, source), flat[middle:end].view(target, rank)
            at = end
        return views

    def add_gradient(self, gradient: Tensor) -> None:
        self.gradient = gradient if self.gradient is None else self.gradient.add_(gradient)

    def step(self, params: AdamParams) -> dict[str, float]:
        """Clip the gradients, apply and clear them; without any, nothing is moved. `grad_norm` is before clipping.

        Raises `ConfigError` for parameters that AdamW cannot have, and `TrainingError` where the gradients are not
        finite; weights and AdamW's state are as they were then.
        """
        self._check(params)
        gradient, self.gradient = self.gradient, None
        if gradient is None:
            self.version += 1
            return {"grad_norm": 0.0}
        norm = gradient.norm().item()
        if not math.isfinite(norm):
            raise TrainingError(
                f"adapter {self.name!r}, step {self.version + 1}: the gradient is not finite. The weights were left as "
                "they were, and the gradients cleared; try a lower learning rate, or clip the gradients."
            )
        if 0 < params.grad_clip_norm < norm:
            gradient.mul_(params.grad_clip_norm / norm)
        self._optimizer.param_groups[0].update(
            lr=params.learning_rate,
            betas=(params.beta1, params.beta2),
            eps=params.eps,
            weight_decay=params.weight_decay,
        )
        self.flat.grad = gradient
        self._optimizer.step()
        self.flat.grad = None
        self.version += 1
        return {"grad_norm": norm}

    def save(self, directory: Path, source: Path, *, optimizer: bool) -> None:
        """Replaces the directory as a whole. Raises `RunError` where the disk does not take it."""
        write_aside(directory, lambda aside: self._write_state(aside, source, optimizer=optimizer))

    def export(self, directory: Path, source: Path) -> None:
        """A PEFT directory; `source` is where the base came from."""
        from peft import LoraConfig as PeftLoraConfig  # behind `lora.py`, which imports it with less

        named = {
            f"base_model.model.{layer}.lora_{letter}.weight": matrix
            for layer, pair in self.factors.items()
            for letter, matrix in zip("AB", pair, strict=True)
        }
        spec = self.spec
        config = PeftLoraConfig(
            task_type="CAUSAL_LM",
            r=spec.rank,
            lora_alpha=spec.alpha,
            lora_dropout=spec.dropout,
            target_modules=sorted(spec.targets),
            base_model_name_or_path=str(source),
        )
        write_adapter(directory, config, TensorStream.of(named, named.__getitem__))

    def load(self, directory: Path, *, optimizer: bool) -> None:
        """What `save` wrote of an adapter of this spec; without `optimizer` AdamW begins anew.

        Raises `RunError` for what is damaged or of another shape; nothing is changed then.
        """
        said = read_training(directory)
        if (wrong := said["spec"]) != (own := _described(self.spec)):
            differ = ", ".join(f"{key} = {wrong.get(key)!r}" for key in own if wrong.get(key) != own[key])
            raise RunError(f"{directory}: the saved adapter has {differ}; load it into an adapter of that shape.")
        flat = torch.empty_like(self.flat.detach())
        try:
            named = read_safetensors([directory / ADAPTER_WEIGHTS])
            for layer, pair in self.views(flat).items():
                for letter, matrix in zip("AB", pair, strict=True):
                    matrix.copy_(_shaped(named[f"base_model.model.{layer}.lora_{letter}.weight"], matrix))
            moments = None
            if optimizer:
                if not (directory / OPTIMIZER).is_file():
                    raise RunError(f"{directory} was saved without its optimiser; load the weights alone.")
                read = read_safetensors([directory / OPTIMIZER])
                moments = {name: _shaped(tensor, flat) for name, tensor in read.items() if name in MOMENTS}
                if moments:
                    moments["step"] = torch.tensor(float(said["steps"]))
        except (ModelLoadError, KeyError, ValueError, TypeError) as error:
            raise RunError(f"{directory}: cannot read the saved adapter: {error}") from None
        self._set(flat, moments)
        self.gradient = None
        self.version, self.draws = (said["version"], said["draws"]) if optimizer else (0, 0)

    def _write_state(self, directory: Path, source: Path, *, optimizer: bool) -> None:
        shutil.rmtree(directory, ignore_errors=True)  # what a kill may have left
        self.export(directory, source)
        moments = self._moments()
        steps = int(moments["step"].item()) if moments else 0
        said = {"spec": _described(self.spec), "version": self.version, "draws": self.draws, "steps": steps}
        (directory / TRAINING).write_text(json.dumps(said) + "\n", encoding="utf-8")
        if optimizer:
            write_tensors(directory / OPTIMIZER, {name: moments[name] for name in MOMENTS if moments})
        seal(directory, self.version)

    def _moments(self) -> dict[str, Tensor]:
        """AdamW's state; empty before the first step."""
        state: dict[str, Tensor] = self._optimizer.state.get(self.flat, {})
        return state

    def _set(self, flat: Tensor, moments: Mapping[str, Tensor] | None) -> None:
        self.flat.detach().copy_(flat)
        self._optimizer.state.clear()
        if moments:
            device = self.flat.device
            self._optimizer.state[self.flat] = {name: tensor.clone().to(device) for name, tensor in moments.items()}

    def _check(self, params: AdamParams) -> None:
        positive = ("learning_rate", "eps", "weight_decay", "grad_clip_norm")
        wrong = [name for name in positive if not 0 <= getattr(params, name) < math.inf]
        wrong += ["eps"] if params.eps == 0 else []
        wrong += [name for name in ("beta1", "beta2") if not 0 <= getattr(params, name) < 1]
        if wrong:
            values = ", ".join(f"{name} = {getattr(params, name)}" for name in wrong)
            raise ConfigError(
                f"adapter {self.name!r}: AdamW cannot have {values}; betas are in [0, 1), eps is positive, the others "
                "are finite and not negative."
            )


def numbers_of(spec: AdapterSpec, sizes: Sizes) -> int:
    """How many numbers an adapter's matrices hold."""
    return sum(spec.rank * (source + target) for source, target in sizes.values())


def read_training(directory: Path) -> dict[str, Any]:
    """`training.json` of a saved adapter whose files are whole. Raises `RunError`."""
    if fault := fault_of(directory):
        raise RunError(f"{directory}: the saved adapter cannot be used: {fault}.")
    try:
        said = json.loads((directory / TRAINING).read_text(encoding="utf-8"))
        counts = {key: int(said[key]) for key in ("version", "draws", "steps")}
        return {"spec": dict(said["spec"]), **counts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{directory}: {TRAINING} cannot be read: {error}") from None


def spec_of(said: Mapping[str, Any]) -> AdapterSpec:
    """The spec in `training.json`. Raises `RunError`."""
    try:
        return AdapterSpec(**{**said["spec"], "targets": tuple(said["spec"]["targets"])})
    except (KeyError, TypeError) as error:
        raise RunError(f"{TRAINING} does not describe an adapter: {error}") from None


def _described(spec: AdapterSpec) -> dict[str, Any]:
    return {**asdict(spec), "targets": sorted(spec.targets)}


def _shaped(tensor: Tensor, like: Tensor) -> Tensor:
    if tensor.shape != like.shape:
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} where {tuple(like.shape)} is expected")
    return tensor


def checked(name: str, spec: AdapterSpec, layers: Iterable[str]) -> None:
    """Raise `ConfigError` for what no adapter can have; `layers` are the names that targets may have."""
    known = sorted(set(layers))
    unknown = sorted(set(spec.targets).difference(known))
    if unknown or not spec.targets:
        what = f"no layer named {', '.join(unknown)}" if unknown else "no adapter without a layer"
        raise ConfigError(f"adapter {name!r}: the base model has {what}. Targets are of {', '.join(known)}.")
    if spec.rank < 1 or not 0 < spec.alpha < math.inf or not 0 <= spec.dropout < 1:
        raise ConfigError(
            f"adapter {name!r}: rank {spec.rank}, alpha {spec.alpha}, dropout {spec.dropout}: the rank is at least 1, "
            "alpha positive and finite, dropout in [0, 1)."
        )
