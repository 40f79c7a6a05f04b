"""Update rules and learning-rate schedules.

`Optimizer` joins what different parameters need (Muon comes with an AdamW for what is not a hidden matrix) behind one
step; schedules are pure functions of the step, so that a resumed run needs no scheduler state.

Parameters that the forward pass reads in bfloat16, and the float32 masters that are trained.

    forward, backward    read matrices in bfloat16: half the bytes, and no copy is made for each product
    gradients            of a micro-batch are bfloat16, and added up on the master in float32 as soon as they are there
    update               of the masters; what the forward pass reads is rounded from them

bfloat16 keeps 8 bits of a number, so an update of less than a 512th of a weight would be lost in it; masters add such
updates up. Vectors (norms, biases) are few: they stay float32 and are their own masters. Source of the method:
Micikevicius et al. 2018 (arXiv:1710.03740).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from whet.errors import RunError
from whet.rl.learner.config import OptimizerConfig
from whet.rl.learner.whole import Whole

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose update is made orthogonal, for the matrices of hidden layers; all parameters must be matrices.

        B <- momentum B + G
        W <- (1 - lr decay) W - lr 0.2 sqrt(max(rows, columns)) NewtonSchulz(G + momentum B)

    `torch.optim.Muon` computes the same, but iterates in bfloat16, which a CPU without bfloat16 instructions emulates:
    for a 1M-parameter model 146 ms a step against 32 ms here in fp32. Sources: Jordan et al. 2024 (the method and its
    coefficients); Liu et al. 2025 (arXiv:2502.16982; the factor that gives updates AdamW's usual size).
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        whole: Whole | None = None,
    ) -> None:
        self._whole = whole or Whole()
        super().__init__(list(params), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are computed before the step"
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            for start in range(0, len(moved), self._whole.ranks):
                self._update(moved[start : start + self._whole.ranks], group)

    def _update(self, parameters: Sequence[Tensor], group: dict[str, Any]) -> None:
        """As many matrices as there are ranks, of which each makes one orthogonal."""
        directions = self._whole.map_whole(orthogonalised, [self._direction(p, group["momentum"]) for p in parameters])
        for parameter, direction in zip(parameters, directions, strict=True):
            own = self._whole.own(parameter)
            own.mul_(1 - group["lr"] * group["weight_decay"])
            own.add_(direction, alpha=-group["lr"] * 0.2 * math.sqrt(max(parameter.shape)))

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        gradient = parameter.grad
        assert gradient is not None
        buffer: Tensor = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(gradient))
        buffer.mul_(momentum).add_(gradient)
        return gradient.add(buffer, alpha=momentum)


def orthogonalised(matrix: Tensor) -> Tensor:
    """The matrix with its singular values moved to between about 0.7 and 1.2, by five Newton-Schulz iterations."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix.T if tall else matrix).to(torch.bfloat16 if matrix.is_cuda else torch.float32)
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).to(matrix.dtype)


def schedule_factor(config: OptimizerConfig, step: int, max_steps: int) -> float:
    """What the peak learning rate is multiplied by in the update after `step` updates.

    Rises linearly over `warmup_steps`, stays at 1 until `decay_start` of `max_steps`, then falls to `min_lr_ratio` at
    `max_steps` (linear, or half a cosine) unless the schedule is constant.
    """
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    decay_from = max(config.decay_start * max_steps, config.warmup_steps)
    if config.schedule == "constant" or step < decay_from:
        return 1.0
    left = max(0.0, (max_steps - step) / (max_steps - decay_from)) if max_steps > decay_from else 0.0
    shape = left if config.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape


class Optimizer:
    """One update rule over all trained parameters: a torch optimiser per kind of parameter."""

    def __init__(
        self,
        config: OptimizerConfig,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        hidden: set[str],
        whole: Whole | None = None,
    ) -> None:
        """`hidden` names the parameters inside layers: Muon takes the matrices among them, and only those."""
        named = list(parameters)
        self.parameters = [parameter for _, parameter in named]
        self._config = config
        self._whole = whole = whole or Whole()
        muon = [p for name, p in named if config.type == "muon" and name in hidden and p.ndim == 2]
        rest = [p for p in self.parameters if all(p is not other for other in muon)]
        self._parts: dict[str, torch.optim.Optimizer] = {}
        if muon:
            decay = config.weight_decay
            self._parts["muon"] = Muon(muon, lr=0.0, momentum=config.momentum, weight_decay=decay, whole=whole)
        # Decay is for matrices; norms and biases are left where they are.
        groups: list[dict[str, Any]] = [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        if groups and config.type == "sgd":
            self._parts["sgd"] = torch.optim.SGD(groups, lr=0.0, momentum=config.momentum)
        elif groups:
            self._parts["adamw"] = torch.optim.AdamW(groups, lr=0.0, betas=config.betas, fused=True)

    def step(self, learning_rate: float, factor: float) -> None:
        """Apply the gradients with `learning_rate * factor` (for Muon's matrices `muon_learning_rate`, if set)."""
        for name, part in self._parts.items():
            peak = self._config.muon_learning_rate if name == "muon" else None
            for group in part.param_groups:
                group["lr"] = (learning_rate if peak is None else peak) * factor
            part.step()

    def reset(self) -> None:
        """Forget momentum and moments."""
        for part in self._parts.values():
            part.state.clear()

    def clear_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def scale_gradients(self, divisor: float, max_norm: float | None) -> float:
        """Divide, clip to `max_norm`, and return the global norm between the two."""
        gradients = [self._whole.own(p.grad) for p in self.parameters if p.grad is not None]
        if not gradients:
            return 0.0
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = float(self._whole.norm(norms.norm())) / divisor
        scale = 1 / divisor
        if max_norm is not None and norm > max_norm:
            scale *= max_norm / norm
        torch._foreach_mul_(gradients, scale)
        return norm

    def states(self) -> list[dict[str, Any]]:
        """Of each parameter that has been updated, by name of the state."""
        return [state for part in self._parts.values() for state in part.state.values()]

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self._parts.items()}

    def by_number(self) -> dict[str, list[nn.Parameter]]:
        """The parameters of each part, as its state counts them."""
        return {name: [p for group in part.param_groups for p in group["params"]] for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_parts(state)
        for name, part in self._parts.items():
            part.load_state_dict(state[name])

    def check_parts(self, state: Mapping[str, Any]) -> None:
        """Raise `RunError` where a state is that of another update rule."""
        if state.keys() != self._parts.keys():
            raise RunError(
                f"the checkpoint's optimiser is {'+'.join(state)}, this run's is {'+'.join(self._parts)}. "
                "Set [optimizer] type to what the run began with, or start a new run from the exported weights."
            )


def hold(parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
    """Keep the matrices among parameters that are not trained in `dtype`, but for those in the blocks of a file."""
    for parameter in parameters:
        if parameter.ndim > 1 and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def put_in(model: nn.Module, base: Mapping[str, Tensor] | None, dtype: torch.dtype) -> None:
    """Give the parameters that are not trained the tensors of `base`, by their names without an adapter's; without
    `base` `hold` them in `dtype`. A parameter in `base`, as of another model, is taken itself."""
    if base is None:
        hold((parameter for parameter in model.parameters() if not parameter.requires_grad), dtype)
        return
    shared: dict[int, nn.Parameter] = {}  # one for what two modules have together; `base` knows it by its first name
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is None or parameter.requires_grad:
                continue
            if id(parameter) not in shared:
                full = f"{prefix}.{name}".removeprefix(".").replace(".base_layer.", ".")
                given = base[full]
                taken = given if isinstance(given, nn.Parameter) else nn.Parameter(given, requires_grad=False)
                shared[id(parameter)] = taken
            module._parameters[name] = shared[id(parameter)]


class Masters:
    """The parameters that are trained, in float32, and those that are computed with."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], dtype: torch.dtype) -> None:
        """Takes float32 parameters, and leaves the matrices among them in `dtype`."""
        self.parameters: list[tuple[str, nn.Parameter]] = []
        """What is trained, by the names of what is computed with: the same where that is float32."""
        self._rounded: list[tuple[nn.Parameter, nn.Parameter]] = []
        for name, parameter in named:
            master = parameter
            if dtype != torch.float32 and parameter.ndim > 1:
                master = nn.Parameter(parameter.detach())
                hold([parameter], dtype)
                parameter.register_post_accumulate_grad_hook(_adds_to(master))
                self._rounded.append((master, parameter))
            self.parameters.append((name, master))

    @torch.no_grad()
    def round(self) -> None:
        """Let the forward pass read what the masters are now."""
        for master, parameter in self._rounded:
            parameter.copy_(master)


def _adds_to(master: nn.Parameter) -> Callable[[Tensor], None]:
    """Moves a gradient to the master, where gradients of micro-batches add up."""

    def move(parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if master.grad is None:
            master.grad = gradient.to(master.dtype)
        else:
            master.grad.add_(gradient)

    return move
