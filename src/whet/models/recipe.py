"""The recipe of whet/tiny: all of its hyperparameters.

Bytes without merges so that characters can be moved; Muon on matrices because AdamW alone did not get there in the same
time; and two stages. First the model imitates experts that are nearly always right, and learns how a task is done.
Then the same experts err more often than not, and the model learns to be right only part of the time. That leaves room
for reinforcement learning. Imitating erring experts from the start gives the same result, but takes much longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from whet.models.phrases import VOCABULARY_SIZE
from whet.models.tokenizer import MAX_LENGTH
from whet.rl.learner.config import OptimizerConfig


@dataclass(frozen=True, slots=True)
class Recipe:
    steps: int = 1800
    batch_size: int = 32  # conversations
    learning_rate: float = 3e-3  # AdamW: embeddings and norms
    muon_learning_rate: float = 4e-3  # matrices
    warmup_steps: int = 50
    decay_start: float = 0.3
    demonstrations: int = 36_000
    first_stage: float = 0.5  # share of steps and demonstrations
    first_skill: float = 0.95  # of the experts in the first stage; in the second it is their own
    without_thinking: float = 0.05  # share shown the empty thinking block of enable_thinking=False
    examples: int = 256  # held-out tasks per environment on the card
    shares: dict[str, float] = field(
        default_factory=lambda: {
            "reverse-text": 0.10,
            "alphabet-sort": 0.11,
            "calculator": 0.12,
            "guess-number": 0.36,
            "arithmetic": 0.31,
        }
    )
    """Of all demonstrations, by environment id."""
    arguments: dict[str, dict[str, int]] = field(
        default_factory=lambda: {
            "reverse-text": {"min_length": 4, "max_length": 10},
            "alphabet-sort": {"min_turns": 2, "max_turns": 4},
        }
    )
    """Arguments of the environments that differ from their defaults: texts are shorter than those of a run, so that
    there is something to learn, and names come over more turns, so that harder tasks are not wholly new."""

    def optimizer(self) -> OptimizerConfig:
        return OptimizerConfig(
            type="muon",
            muon_learning_rate=self.muon_learning_rate,
            momentum=0.95,
            betas=(0.9, 0.95),
            max_grad_norm=1.0,
            schedule="linear",
            warmup_steps=self.warmup_steps,
            decay_start=self.decay_start,
        )


RECIPE = Recipe()

ARCHITECTURE: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 384,
    "tie_word_embeddings": True,
    "max_position_embeddings": MAX_LENGTH,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "dtype": "bfloat16",
}
"""Arguments of `transformers.Qwen3Config`: 0.85 million parameters."""
