"""`TorchLearner`: the `Learner` protocol in one process, on one device.

A batch is laid out in micro-batches, each runs forward, loss and backward, and gradients of the summed loss add up
until `optim_step` divides them. What is trained (`weights`), how it is updated (`optim`) and what the model computes
(`forward`) are other files' business. With one thread on CPU everything here is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from whet.errors import TrainingError
from whet.inference.architecture import Architecture
from whet.inference.protocol import WeightUpdate
from whet.inference.weights.host_memory import HostCopies
from whet.rl.algorithms import LossInputs, LossTerms, find, loss_fn
from whet.rl.data.batch import PackedBatch
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.critic import Critic, taken
from whet.rl.learner.flops import batch_flops, known_peak
from whet.rl.learner.forward.forward_pass import ForwardPass, Layout, MicroBatch
from whet.rl.learner.forward.layout import TokenLayout
from whet.rl.learner.offload import move_learner
from whet.rl.learner.optim import Optimizer, schedule_factor
from whet.rl.learner.packed_base import described
from whet.rl.learner.protocol import Learner, LossOutput, OptimOutput, OptimParams, TokenValues
from whet.rl.learner.ratio_limits import limited
from whet.rl.learner.reference import Reference, kl_terms
from whet.rl.learner.saved_state import SavedState, read_state, save_state
from whet.rl.learner.weights import Weights, forget_published
from whet.rl.learner.whole import Whole
from whet.rl.sections.algorithm import LossConfig

NAMED = 3
"""Rollouts that a message names."""


class TorchLearner(Learner):
    """See `whet.rl.learner.protocol.Learner`; made by `whet.rl.learner.make.make_learner`."""

    def __init__(
        self,
        weights: Weights,
        optimizer: OptimizerConfig,
        computation: LearnerConfig,
        *,
        max_steps: int,
        publish_directory: Path,
        arch: Architecture | None,
        reference: Reference | None = None,
        reference_thread: bool = False,
        whole: Whole | None = None,
        forward: ForwardPass | None = None,
    ) -> None:
        """Without `arch` the model runs through transformers' own forward pass, and its operations are not counted.

        `reference` is the policy that a loss with `kl_coef` holds to; with `reference_thread` its passes are made
        concurrently with the learner's, where its weights are its own. One rank of many has its parameters and its
        forward pass in a way of its own (`ranks/rank_learner.py`)."""
        self.version = 0
        self.weights = weights
        """The model that is trained, and its adapter."""
        self._config = optimizer
        self._whole = whole or Whole()
        hidden = weights.hidden_parameters()
        self.optimizer = Optimizer(optimizer, weights.parameters(), hidden=hidden, whole=self._whole)
        """The parameters that are trained, with their gradients and the optimiser's state."""
        self._max_steps = max_steps
        self._publish_directory = publish_directory
        self._reference = reference
        self._critic: Critic | None = None
        concurrent = reference_thread and reference is not None and not reference.shared
        self._thread = ThreadPoolExecutor(1, "reference") if concurrent else None
        self._device = weights.model.device
        self._hosts = HostCopies(self._device)
        parts = weights.model.named_modules()
        self._dropouts = [part for name, part in parts if ".lora_dropout." in name and isinstance(part, nn.Dropout)]
        self._arch = arch
        self._pass = forward or ForwardPass(computation, self._device, own=arch is not None)
        peak_tflops = computation.peak_tflops
        if peak_tflops is None and self._device.type == "cuda":
            peak_tflops = known_peak(torch.cuda.get_device_name(self._device))
        self._peak_flops = None if peak_tflops is None else peak_tflops * 1e12

    @property
    def parameters(self) -> int:
        """Parameters of the model, an adapter's included."""
        return sum(p.numel() for p in described(self.weights.model).values())

    @property
    def trained_parameters(self) -> int:
        return sum(p.numel() for p in self.optimizer.parameters)

    def forward_backward(self, batch: PackedBatch, loss: LossConfig) -> LossOutput:
        """Add the gradients of the summed loss; says what it saw of each token, and how much was computed.

        `sums`: `entropy`; for losses over sampled tokens `kl`, the k3 estimate of KL(sampler || learner), and
        `clipped`, the number of tokens that were dropped or whose ratio was cut, with `tis_limit` and `mis_limit` also
        `truncated` and `masked`, of these the ones by that limit; with `kl_coef`, `kl_reference`, the estimate of
        KL(learner || reference), or with `kl_in` = reward of KL(sampler || reference), and of the `distilled` tokens
        `kl_teacher`. With dropout the probabilities that are compared are those without it, as engines sample, which
        takes one more forward pass; gradients have it. Raises `TrainingError` where the loss is not finite, naming the
        rollouts; all gradients are cleared then.
        """
        function, sampled = loss_fn(loss.loss), find(loss.loss, "loss").compares_with_sampler
        output = LossOutput(loss=0.0, tokens=batch.trained_tokens, peak_flops=self._peak_flops)
        seen = TokenValues(np.zeros(len(batch.ids), np.float32), np.zeros(len(batch.ids), np.bool_))
        micros, fault = self._micro_batches(batch), None
        if batch.returns is not None:
            micros = [replace(micro, hidden=[]) for micro in micros]
        taught = batch.distilled is not None and batch.teacher_logprobs is None
        compared = loss.kl_coef or taught or (self._reference is not None and not self._alone)
        if loss.distill_top_k:
            micros = self._with_likeliest(micros, loss.distill_top_k)
        references = self._references(micros) if compared else [None] * len(micros)
        wholes = self._wholes(micros) if self._dropouts and (sampled or compared) else [None] * len(micros)
        self.weights.model.eval()
        for dropout in self._dropouts:  # all else that a model does in training only would change what was sampled
            dropout.train()
        # In this order: the reference's logprobs of a micro-batch are requested after the learner's own forward pass.
        for micro, (logprobs_N, entropies_N), reference_N, whole in zip(
            micros, self._forward(micros), references, wholes, strict=True
        ):
            if micro.filler:
                self._backward(0.0 * logprobs_N.sum())
                continue
            if whole is not None:
                logprobs_N, entropies_N = map(_valued, (logprobs_N, entropies_N), whole)
            with_kl, likeliest, kl_sums = None, None, dict[str, float]()
            if loss.distill_top_k:
                logprobs_N, others_NK = logprobs_N[:, 0], logprobs_N[:, 1:]
                if reference_N is not None:
                    reference_N, likeliest = reference_N[:, 0], (others_NK, reference_N[:, 1:])
            inputs = self._loss_inputs(batch, micro.layout, logprobs_N)
            if reference_N is not None or batch.teacher_logprobs is not None:
                given = batch, micro.layout, inputs, reference_N, loss, self._pass.tensor, likeliest
                inputs, with_kl, kl_sums = kl_terms(*given)
            terms, limited_tokens = limited(function, inputs, loss)
            _add(output.sums, limited_tokens)
            _add(output.sums, kl_sums)
            if with_kl is not None:
                terms = replace(terms, loss_N=with_kl(terms.loss_N))
            if loss.entropy_coef:
                terms = replace(terms, loss_N=terms.loss_N - loss.entropy_coef * entropies_N)
            if batch.weights is not None:
                terms = replace(terms, loss_N=terms.loss_N * self._pass.tensor(batch.weights[micro.layout.targets]))
            total = terms.loss_N.sum()
            output.loss += total.item()
            if fault is None and not math.isfinite(output.loss):
                fault = _not_finite(batch, micro.layout, logprobs_N, terms)
                if self._alone:
                    break
            self._backward(total)
            if batch.returns is not None:
                assert self._critic is not None, "the values of the batch are its own"
                _add(output.sums, self._critic.learn(micro, self._pass.tensor, loss.critic))
            _add(output.sums, _diagnostics(inputs, terms, entropies_N, sampled=sampled))
            seen.logprobs_T[micro.layout.targets] = logprobs_N.detach().cpu().numpy()
            if terms.clipped_N is not None:
                seen.clipped_T[micro.layout.targets] = terms.clipped_N.cpu().numpy()
        if (fault := self._agreed(fault)) is not None:
            self.optimizer.clear_gradients()
            raise fault
        if sampled:
            output.values = seen
        if self._arch is not None:
            own = [micro.layout for micro in micros if isinstance(micro.layout, TokenLayout) and not micro.filler]
            output.flops = batch_flops(self._arch, own, frozen=self.trained_parameters < self.parameters)
        return output

    @torch.no_grad()
    def token_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        """log p of every trained token under the present weights, as it was sampled; 0 for other tokens."""
        self.weights.model.eval()
        micros = self._micro_batches(batch)
        return _in_batch(batch, micros, (logprobs_N for logprobs_N, _ in self._forward(micros)))

    @torch.no_grad()
    def token_values(self, batch: PackedBatch) -> NDArray[np.float32]:
        """See `Learner`. The first call makes the critic: it expects 0 then."""
        self.weights.model.eval()
        if self._critic is None:
            self._critic = Critic(self.weights.model.config.hidden_size, self._device)
        micros, critic = [replace(micro, hidden=[]) for micro in self._micro_batches(batch)], self._critic
        pairs = [
            (logprobs_N, critic.values(taken(micro)))
            for micro, (logprobs_N, _) in zip(micros, self._forward(micros), strict=True)
        ]
        return np.stack([_in_batch(batch, micros, of_micros) for of_micros in zip(*pairs, strict=True)])

    @torch.no_grad()
    def reference_logprobs(self, batch: PackedBatch) -> NDArray[np.float32]:
        """The same under the reference. Raises `TrainingError` where the learner was made without one."""
        micros = self._micro_batches(batch)
        return _in_batch(batch, micros, self._references(micros))

    def optim_step(self, params: OptimParams) -> OptimOutput:
        """Divide, clip, apply and clear. `params.learning_rate` is the peak: the schedule is applied here.

        Raises `TrainingError` where the gradients are not finite; the weights are left as they were.
        """
        norm = self.optimizer.scale_gradients(params.denominator, params.max_grad_norm)
        if not math.isfinite(norm):
            self.optimizer.clear_gradients()
            raise TrainingError(
                f"step {self.version + 1}: the gradient is not finite, the weights were left as they were. "
                "A lower learning_rate or [optimizer] max_grad_norm usually helps; the last checkpoint is good."
            )
        if params.reference_share:
            self._hold_reference()
        factor = schedule_factor(self._config, self.version, self._max_steps)
        self.optimizer.step(params.learning_rate, factor)
        if self._critic is not None and params.critic_rate is not None:
            rate = params.critic_rate * factor
            self._critic.step(rate, params.denominator, params.max_grad_norm, self._whole.summed)
        self.weights.updated()
        self.optimizer.clear_gradients()
        self.version += params.ends_batch
        if params.reference_share and params.ends_batch:
            assert self._reference is not None, "checked by the config"
            self._reference.move(self.weights, params.reference_share)
        if params.resets_optimizer:
            self.optimizer.reset()
        return OptimOutput(grad_norm=norm, learning_rate=params.learning_rate * factor, version=self.version)

    def _hold_reference(self) -> None:
        assert self._reference is not None, "checked by the config"
        self._reference.hold(self.weights)

    def publish(self) -> WeightUpdate:
        return self.weights.publish(self._publish_directory, self.version)

    def offload(self) -> None:
        """See `Learner`."""
        if self._device.type == "cuda":
            move_learner(self.weights, self.optimizer, self._reference, self._hosts.leave)
            self._hosts.finish()

    def restore(self) -> None:
        """See `Learner`."""
        forget_published(self._publish_directory)
        if self._device.type == "cuda":
            move_learner(self.weights, self.optimizer, self._reference, self._hosts.enter)

    def save(self, directory: Path) -> None:
        self.weights.save(directory)
        if self._reference is not None:
            self._reference.save(directory, self.weights)
        rng = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            rng["cuda"] = torch.cuda.get_rng_state(self._device)
        if (critic := self._critic) is not None:
            self._whole.write(lambda: critic.save(directory), (), "writing the critic")
        self._save_state(directory, SavedState(self.version, self.optimizer.state_dict(), rng))

    def load(self, directory: Path) -> None:
        """Everything `save` wrote: from here on the learner does, bit for bit, what the saved one would have done."""
        state = self._read(directory)
        self.optimizer.load_state_dict(state.optimizer)
        self.optimizer.clear_gradients()
        if "cpu" in state.rng:
            torch.set_rng_state(state.rng["cpu"])
        if self._device.type == "cuda" and "cuda" in state.rng:
            torch.cuda.set_rng_state(state.rng["cuda"], self._device)
        self.version = state.version

    def _save_state(self, directory: Path, state: SavedState) -> None:
        save_state(directory, state)

    def _read(self, directory: Path) -> SavedState:
        """The state that was saved, with the weights in place."""
        state = read_state(directory, self.optimizer, self._whole)
        self.weights.load(directory)
        if self._reference is not None:
            self._reference.load(directory, self.weights)
        self._critic = Critic.load(directory, self._device)
        return state

    def export(self, directory: Path, dtype: str = "float32") -> None:
        """For plain `transformers` or `peft`, with its tokenizer."""
        self.weights.export(directory, getattr(torch, dtype))

    def export_merged(self, directory: Path, dtype: str = "float32") -> None:
        """The whole model: with an adapter, the adapter added in; otherwise what `export` writes."""
        self.weights.export_merged(directory, getattr(torch, dtype))

    def close(self) -> None:
        self.optimizer.clear_gradients()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    _alone = True
    """No other rank computes the same batch."""

    def _micro_batches(self, batch: PackedBatch) -> list[MicroBatch]:
        return self._pass.micro_batches(batch, self.weights.model.get_input_embeddings().num_embeddings)

    def _backward(self, total: Tensor) -> None:
        torch.autograd.backward(total)

    def _agreed(self, fault: TrainingError | None) -> TrainingError | None:
        """What is raised, by every rank alike."""
        return fault

    def _forward(self, micros: Sequence[MicroBatch]) -> Iterator[tuple[Tensor, Tensor]]:
        return (self._pass.logprobs(self.weights.model, micro) for micro in micros)

    @torch.no_grad()
    def _wholes(self, micros: Sequence[MicroBatch]) -> list[tuple[Tensor, Tensor]]:
        """What each micro-batch is under the policy itself, without dropout: that is what was sampled with."""
        self.weights.model.eval()
        return list(self._forward(micros))

    @torch.no_grad()
    def _with_likeliest(self, micros: Sequence[MicroBatch], count: int) -> list[MicroBatch]:
        """Micro-batches in which each target has so many of the policy's likeliest tokens beside it."""
        self.weights.model.eval()
        ids = self._forward([replace(micro, others=count) for micro in micros])
        return [replace(micro, others=ids_NK) for micro, (ids_NK, _) in zip(micros, ids, strict=True)]

    def _references(self, micros: Sequence[MicroBatch]) -> Iterator[Tensor]:
        """The reference's logprobs of each micro-batch: computed on demand, or earlier in the thread."""
        if self._reference is None:
            raise TrainingError("kl_coef needs a reference policy, and this learner was made without one.")
        work = partial(self._reference_logprobs, self._reference)
        return map(work, micros) if self._thread is None else self._thread.map(work, micros)

    @torch.no_grad()
    def _reference_logprobs(self, reference: Reference, micro: MicroBatch) -> Tensor:
        experts = micro.batch.experts if reference.replays else None
        seen = replace(micro, batch=replace(micro.batch, experts=experts), hidden=None)
        with reference.lend() as model:
            return self._pass.logprobs(model, seen)[0]

    def _loss_inputs(self, batch: PackedBatch, layout: Layout, logprobs_N: Tensor) -> LossInputs:
        sequence_N = batch.sequence_of_token[layout.targets]
        return LossInputs(
            logprobs_N=logprobs_N,
            sampled_logprobs_N=self._pass.tensor(batch.logprobs[layout.targets]),
            advantages_N=self._pass.tensor(batch.advantages[layout.targets]),
            sequence_N=self._pass.tensor(sequence_N).long(),
            group_N=None if batch.groups is None else self._pass.tensor(batch.groups[sequence_N]).long(),
            selected_N=None if batch.selected is None else self._pass.tensor(batch.selected[layout.targets]),
        )


def _in_batch(batch: PackedBatch, micros: Sequence[MicroBatch], logprobs: Iterable[Tensor]) -> NDArray[np.float32]:
    result_T = np.zeros(len(batch.ids), np.float32)
    for micro, logprobs_N in zip(micros, logprobs, strict=True):
        if not micro.filler:
            result_T[micro.layout.targets] = logprobs_N.cpu().numpy()
    return result_T


def _valued(of_dropout_N: Tensor, value_N: Tensor) -> Tensor:
    """The value of the whole policy, with the gradient of the one that dropout leaves."""
    return value_N + (of_dropout_N - of_dropout_N.detach())


@torch.no_grad()
def _diagnostics(inputs: LossInputs, terms: LossTerms, entropies_N: Tensor, *, sampled: bool) -> dict[str, float]:
    sums = {"entropy": entropies_N.sum().item()}
    if sampled:
        log_ratio_N = inputs.log_ratio_N
        sums["kl"] = (log_ratio_N.expm1() - log_ratio_N).sum().item()
        sums["clipped"] = 0.0 if terms.clipped_N is None else float(terms.clipped_N.sum().item())
    return sums


def _add(sums: dict[str, float], more: dict[str, float]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0.0) + value


def _not_finite(batch: PackedBatch, layout: Layout, logprobs_N: Tensor, terms: LossTerms) -> TrainingError:
    bad_N = ~terms.loss_N.detach().isfinite().cpu().numpy()
    sequences = np.unique(batch.sequence_of_token[layout.targets[bad_N]])
    rollouts = [*dict.fromkeys(batch.rollouts[sequence] for sequence in sequences.tolist())]
    names = ", ".join(rollouts[:NAMED]) + (f" and {len(rollouts) - NAMED} more" if len(rollouts) > NAMED else "")
    if not logprobs_N.isfinite().all():
        cause = "the model's own logprobs are not finite: the weights have diverged; try a lower learning_rate"
    elif not np.isfinite(batch.advantages).all():
        cause = "their advantages are not finite: look at the rewards"
    elif not np.isfinite(batch.logprobs).all():
        cause = "the sampler's logprobs are not finite"
    else:
        cause = "the ratio of learner to sampler (or to the reference) is too large: masked_is and ppo bound the former"
    return TrainingError(f"the loss is not finite for rollouts {names or '(their sum overflows)'}: {cause}.")
