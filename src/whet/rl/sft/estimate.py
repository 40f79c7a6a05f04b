"""`whet train sft --dry-run`: what the data comes to, how many steps that is, and what they hold in memory.

Rows in files are read and made into tokens as in a run, so what is wrong with them is found here too. What would have
to be downloaded (a model, a dataset of the hub) is not: then lengths are unknown, and the longest sequence that the
config allows is counted with. By the parts of `whet.rl.estimate`.
"""

from __future__ import annotations

from collections.abc import Mapping

from whet.inference.architecture import Architecture
from whet.inference.loading import read_model
from whet.rl.estimate import Estimate, architecture, learner_parts, made_up, merging_parts, sampler_parts
from whet.rl.sft.config import SftConfig
from whet.rl.sft.data import SftData, load_data

SAME_WORK = ("batch_size", "batch_tokens", "data", "lora", "learner", "optimizer")
"""Keys that must be equal for the steps of one run to say how long those of another take."""


def estimate(config: SftConfig, devices: Mapping[str, str]) -> Estimate:
    """For a settled config that is about to run. Nothing is downloaded and no weight is read.

    Raises what reading the data raises.
    """
    arch, why = architecture(config.model)
    data, unknown = None, []
    if config.data.path is None:
        unknown.append(f"rows: {config.data.dataset} is read when the run begins")
    elif arch is None:
        unknown.append("rows: they become tokens by the model's own tokenizer")
    else:
        data = load_data(config, read_model(config.model).renderer, context=arch.max_context)
    return made_up(
        config,
        devices,
        arch,
        why,
        {} if arch is None else memory_parts(arch, config, data),
        SAME_WORK,
        steps=config.max_steps or (None if data is None else data.batches(config).left()),
        unknown=unknown,
        data=None if data is None else counts(data),
    )


def counts(data: SftData) -> dict[str, int]:
    """How much there is, by what people call it."""
    return {
        "rows": len(data.train),
        **({"rows of validation": len(data.validation)} if data.validation else {}),
        "tokens": sum(example.tokens for example in data.train),
        "longest": data.longest,
    }


def memory_parts(arch: Architecture, config: SftConfig, data: SftData | None) -> dict[str, int]:
    """Bytes, by what they are for."""
    most = min(arch.max_context, config.data.max_length or arch.max_context)
    longest = most if data is None else data.longest
    # A micro-batch is one sequence at least, and no more than a batch has.
    tokens = max(longest, min(config.learner.micro_batch_tokens, config.batch_tokens or config.batch_size * longest))
    parts = learner_parts(arch, config, tokens=tokens, length=longest)
    if config.eval is None:
        return parts
    ways = 2 if config.eval.greedy else 1
    rollouts = len(config.eval.env) * ways * config.eval.num_examples * config.eval.rollouts_per_example
    held = min(config.max_concurrent, rollouts) * config.eval_sampling().max_tokens
    merging = {} if config.lora is None else merging_parts(arch, config, config.sampler)
    return sampler_parts(arch, config.sampler, config.lora, tokens=held) | merging | parts
