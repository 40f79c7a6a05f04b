"""Making whet/tiny, the model in src/whet/models/tiny: demonstrations, imitation, export, card.

    .venv/bin/python -m scripts.tiny_model.recipe --out my-tiny        in about 20 minutes on two cores

Seeded: the same seed, machine and number of threads give the same weights. A step is one of `whet train sft`; what
differs is where its rows come from: two stages under one schedule, of demonstrations that are tokens from the start.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar, cast

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from scripts.tiny_model.card import Card, measure, write_card
from scripts.tiny_model.experts import EXPERTS, TURN_END, Conversation, Expert
from scripts.tiny_model.tokenizer import MAX_LENGTH, VOCABULARY_SIZE, build_tokenizer, save_tokenizer
from whet.envs.environment import Environment
from whet.envs.loading import load_environment
from whet.errors import ModelError, WhetError
from whet.inference.policy_client import PolicyClient
from whet.inference.protocol import Engine, OnTokens, Sample, SampleRequest, VersionRun, WeightUpdate
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.rl.data.batch import TokenSequence, sequences_of
from whet.rl.learner.config import LearnerConfig, OptimizerConfig
from whet.rl.learner.make import make_learner
from whet.rl.sft.run import imitate
from whet.types import RolloutInput, SamplingArgs

# The recipe of whet/tiny: all of its hyperparameters.
#
# Bytes without merges so that characters can be moved; Muon on matrices because AdamW alone did not get there in the
# same time; and two stages. First the model imitates experts that are nearly always right, and learns how a task is
# done. Then the same experts err more often than not, and the model learns to be right only part of the time. That
# leaves room for reinforcement learning. Imitating erring experts from the start gives the same result, but takes much
# longer.


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


Progress = Callable[[str, int, int], None]
"""Receives a stage's name, how much of it is done, and of how much."""

Stages = tuple[list[TokenSequence], list[TokenSequence]]
"""The demonstrations of the first stage and of the second."""


def build_tiny(
    out: Path,
    *,
    seed: int = 0,
    recipe: Recipe = RECIPE,
    threads: int | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Path:
    """Make the model in the new or empty directory `out`, and return it.

    Raises `WhetError` when `out` has files in it, and `EnvironmentLoadError` when one of the example environments is
    not installed.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise WhetError(f"{out} is not an empty directory. Give a new one, so that no other model is overwritten.")
    if threads is not None:
        torch.set_num_threads(threads)
    started = time.monotonic()
    stages = make_demonstrations(recipe, seed, progress)
    with tempfile.TemporaryDirectory(prefix="whet-build-") as scratch:
        begin = Path(scratch)
        write_untrained(begin, seed)
        train(begin, out, stages, recipe, seed, progress)
    seconds = round(time.monotonic() - started)
    scores = measure(out, list(recipe.shares), examples=recipe.examples, progress=progress)
    write_card(
        out, Card(seed=seed, steps=recipe.steps, demonstrations=sum(map(len, stages)), seconds=seconds, scores=scores)
    )
    return out


def make_demonstrations(recipe: Recipe, seed: int, progress: Progress) -> Stages:
    """From the training split of every environment, in the shares of the recipe, for one stage and the other."""
    tokenizer = build_tokenizer()
    stages: Stages = ([], [])
    for env_id, share in recipe.shares.items():
        expert = EXPERTS[env_id]
        count = round(recipe.demonstrations * share)
        env = load_environment(env_id, num_train=count, seed=seed, **recipe.arguments.get(env_id, {}))
        middle = round(count * recipe.first_stage)
        for stage, skill, start, stop in ((0, recipe.first_skill, 0, middle), (1, expert.skill, middle, count)):
            stages[stage].extend(
                demonstrate(
                    env,
                    replace(expert, skill=skill),
                    tokenizer,
                    start=start,
                    stop=stop,
                    seed=seed,
                    without_thinking=recipe.without_thinking,
                )
            )
            progress("demonstrations", sum(map(len, stages)), recipe.demonstrations)
    return stages


def write_untrained(directory: Path, seed: int) -> None:
    """The model before its first step, with its tokenizer."""
    tokenizer = build_tokenizer()
    torch.manual_seed(seed)
    config = Qwen3Config(
        **ARCHITECTURE,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForCausalLM(config).float().save_pretrained(directory)
    save_tokenizer(directory)


def train(begin: Path, out: Path, stages: Stages, recipe: Recipe, seed: int, progress: Progress) -> None:
    """From the model in `begin` to the one in `out`, by imitating one stage's demonstrations after the other's."""
    optimizer = recipe.optimizer()
    learner = make_learner(
        begin,
        optimizer=optimizer,
        lora=None,
        max_steps=recipe.steps,
        seed=seed,
        publish_directory=begin,
        computation=LearnerConfig(device="cpu"),  # the same bits on every machine
    )
    streams = [batches(sequences, recipe.batch_size, seed) for sequences in stages]
    for step in range(1, recipe.steps + 1):
        sequences = next(streams[step > recipe.steps * recipe.first_stage])
        imitate(learner, sequences, recipe.learning_rate, optimizer.max_grad_norm)
        progress("imitation", step, recipe.steps)
    learner.export(out, "bfloat16")
    learner.close()


# Demonstrations: rollouts of the real environments with a scripted expert in place of the model.
#
# The expert is an `Engine`: it receives token ids and returns token ids. Everything between it and the environment
# (rendering, continuation from turn to turn, parsing, tools, merging turns into sequences) is what reinforcement
# learning uses, so demonstrations cannot drift away from what the model will be shown. Only training splits are ever
# read.

SAMPLING = {"temperature": 1.0, "max_tokens": 256}


@dataclass(slots=True)
class ExpertEngine(Engine):
    """An `Engine` that reads the prompt as text and lets an expert write the answer."""

    tokenizer: Any
    expert: Expert
    rng: Random
    version: int = 0
    recomputes: ClassVar[bool] = True

    async def sample(self, request: SampleRequest, *, on_tokens: OnTokens | None = None) -> Sample:
        prompt = self.tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
        answer = self.expert(Conversation.read(prompt), self.rng)
        ids = self.tokenizer.encode(answer + TURN_END, add_special_tokens=False)
        if on_tokens is not None:
            on_tokens(ids)
        return Sample(ids, [0.0] * len(ids), [VersionRun(self.version, len(ids))], "stop")

    async def load_weights(self, update: WeightUpdate) -> None:
        self.version = update.version

    async def unload_adapter(self, name: str) -> None:
        """There is none: `load_weights` takes whatever it is given."""
        raise ModelError(f"an expert has no adapter {name!r}")

    async def release(self, rollout_key: str) -> None:
        """There is nothing to forget."""

    async def close(self) -> None:
        """There is nothing to close."""


def demonstrate(
    env: Environment,
    expert: Expert,
    tokenizer: Any,
    *,
    start: int = 0,
    stop: int,
    seed: int,
    without_thinking: float = 0.0,
) -> list[TokenSequence]:
    """Conversations number `start` to `stop` on the environment's training tasks, over and over if those are fewer.

    A share of `without_thinking` is shown the empty thinking block of `enable_thinking=False`, so that the model knows
    both forms of the prompt. Raises what the environment raises: an expert has no excuse for a rollout that failed.
    """
    rng = Random(f"{env.env_id} {seed} {start}")
    engine = ExpertEngine(tokenizer, expert, rng)
    client = PolicyClient(engine, ChatRenderer(tokenizer), max_context=tokenizer.model_max_length)
    rows = env.get_dataset()

    async def demonstrations() -> list[TokenSequence]:
        sequences: list[TokenSequence] = []
        for number in range(start, stop):
            row = cast(RolloutInput, rows[number % len(rows)])
            thinking: SamplingArgs = {"enable_thinking": False} if rng.random() < without_thinking else {}
            state = await env.rollout(row, client, "expert", {**SAMPLING, **thinking})
            if state["error"] is not None:
                raise state["error"]
            sequences += sequences_of(state["trajectory"], temperature=1.0, rollout=f"{env.env_id} {number}")
        return sequences

    return asyncio.run(demonstrations())


def batches(sequences: list[TokenSequence], size: int, seed: int) -> Iterator[list[TokenSequence]]:
    """Batches without end: every pass in a new order, what does not fill a batch left for another pass."""
    rng = Random(seed)
    while True:
        order = rng.sample(sequences, len(sequences))
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tiny"), help="Directory to write the model to.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of its data and its first weights.")
    options = parser.parse_args()
    build_tiny(
        options.out,
        seed=options.seed,
        progress=lambda stage, done, total: print(f"\r{stage} {done}/{total}", end="", file=sys.stderr),
    )


if __name__ == "__main__":
    main()
