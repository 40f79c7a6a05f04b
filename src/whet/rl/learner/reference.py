"""The policy that a KL term holds the learner to: lent for one forward pass, never trained.

    all weights   a frozen copy of the weights the learner began with: 4 more bytes a parameter
    LoRA          the base with the adapter switched off: no memory at all
    a model       another checkpoint of the same vocabulary, frozen: 4 more bytes for each of its parameters

Each costs one more forward pass a step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass

from transformers import PreTrainedModel

from whet.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Reference:
    """A policy to be held to."""

    lend: Callable[[], AbstractContextManager[PreTrainedModel]]  # the model, for the length of a `with` block
    replays: bool  # it takes the experts that the sampler chose, where the learner does; another model's are others
    shared: bool = False  # its weights are those that are trained: lent only while the learner does not compute


def frozen_copy(model: PreTrainedModel) -> Reference:
    """The weights as they are now, whatever becomes of `model`."""
    return _frozen(deepcopy(model), replays=True)


def other_model(reference: PreTrainedModel, name: str, *, like: PreTrainedModel) -> Reference:
    """Another model. Raises `ConfigError` where its tokens are not those of the model that is trained."""
    theirs, ours = reference.config.vocab_size, like.config.vocab_size
    if theirs != ours:
        raise ConfigError(
            f"[algorithm] reference: {name} has a vocabulary of {theirs} tokens, the model that is trained "
            f"one of {ours}. Probabilities of the same tokens are compared, so both need the same tokenizer."
        )
    return _frozen(reference, replays=False)


def _frozen(model: PreTrainedModel, *, replays: bool) -> Reference:
    model.requires_grad_(False)
    model.eval()
    return Reference(lambda: nullcontext(model), replays)
