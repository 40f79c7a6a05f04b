"""Making whet/tiny: demonstrations, imitation, export, card. What `whet model build-tiny` runs.

Seeded: the same seed, machine and number of threads give the same weights. A step is one of `whet train sft`; what
differs is where its rows come from: two stages under one schedule, of demonstrations that are tokens from the start.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from whet.envs.loading import load_environment
from whet.errors import WhetError
from whet.models.card import Card, measure, write_card
from whet.models.demonstrations import batches, demonstrate
from whet.models.experts import EXPERTS
from whet.models.recipe import ARCHITECTURE, RECIPE, Recipe
from whet.models.tokenizer import build_tokenizer, save_tokenizer
from whet.rl.data.samples import TokenSequence
from whet.rl.learner.config import LearnerConfig
from whet.rl.learner.make import make_learner
from whet.rl.sft.loop import imitate

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
