"""A bank of low-rank corrections to a table of bigrams: it learns in microseconds, with the bank's interface."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from whet.errors import ModelLoadError, WhetError
from whet.rl.learner.adapters.work import AdamParams, AdapterOutput, AdapterSpec, AdapterWork

VOCABULARY = 32


class BigramBank:
    def __init__(self) -> None:
        self.base = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(0))
        self.adapters: dict[str, tuple[list[torch.Tensor], torch.optim.AdamW]] = {}
        self.steps: list[str] = []
        self.passes: list[list[str]] = []

    def create(self, name: str, spec: AdapterSpec) -> None:
        assert name not in self.adapters
        generator = torch.Generator().manual_seed(spec.seed)
        a = torch.randn(VOCABULARY, spec.rank, generator=generator) / spec.rank
        matrices = [a.requires_grad_(), torch.zeros(spec.rank, VOCABULARY, requires_grad=True)]
        self.adapters[name] = matrices, torch.optim.AdamW(matrices)

    def remove(self, name: str) -> None:
        del self.adapters[name]

    def forward_backward(self, works: Sequence[AdapterWork]) -> list[AdapterOutput | WhetError]:
        self.passes.append([work.adapter for work in works])
        return [self._one(work) for work in works]

    def _one(self, work: AdapterWork) -> AdapterOutput | WhetError:
        a, b = self.adapters[work.adapter][0]
        table = (self.base + a @ b).log_softmax(-1)
        total, logprobs, sums = torch.zeros(()), [], {}
        for datum in work.data:
            inputs = {name: torch.from_numpy(array.copy()) for name, array in datum.inputs.items()}
            targets = inputs["target_tokens"]
            rows = table[torch.tensor(datum.ids)]
            found = rows.gather(-1, targets.reshape(len(datum.ids), -1)).reshape(targets.shape)
            loss, terms = work.loss(found, inputs)
            total = total + loss
            logprobs.append(found.detach().numpy())
            for name, value in terms.items():
                sums[name] = sums.get(name, 0.0) + value.item()
        if not torch.isfinite(total):
            return WhetError("the loss is not finite.")
        if work.backward:
            total.backward()
        return AdapterOutput(logprobs, total.item(), sums)

    def optim_step(self, name: str, params: AdamParams) -> dict[str, float]:
        matrices, optimizer = self.adapters[name]
        for group in optimizer.param_groups:
            group |= {"lr": params.learning_rate, "betas": (params.beta1, params.beta2), "eps": params.eps}
            group["weight_decay"] = params.weight_decay
        norm = sum(float((matrix.grad**2).sum()) for matrix in matrices if matrix.grad is not None) ** 0.5
        optimizer.step()
        optimizer.zero_grad()
        self.steps.append(name)
        return {"grad_norm": norm}

    def save(self, name: str, directory: Path, optimizer: bool = True) -> None:
        matrices, adam = self.adapters[name]
        kept = {"weights": [matrix.detach() for matrix in matrices], "optimizer": adam.state_dict()}
        torch.save(kept, directory / "state.pt")

    def load(self, name: str, directory: Path, optimizer: bool = True) -> None:
        matrices, adam = self.adapters[name]
        if not (directory / "state.pt").exists():
            raise ModelLoadError(f"{directory} has no state.")
        kept = torch.load(directory / "state.pt")
        with torch.no_grad():
            for matrix, value in zip(matrices, kept["weights"], strict=True):
                matrix.copy_(value)
        if optimizer:
            adam.load_state_dict(kept["optimizer"])

    def export(self, name: str, directory: Path) -> None:
        (directory / "adapter_config.json").write_text(json.dumps({"r": self.adapters[name][0][0].shape[1]}))
        self.save(name, directory)

    def bytes_of(self, spec: AdapterSpec) -> int:
        return 2 * VOCABULARY * spec.rank * 4 * 4
