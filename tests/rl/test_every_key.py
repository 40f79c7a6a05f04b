"""Every key of a run's config changes something that can be seen, or is refused.

`KEYS` has an entry for each leaf of `RunConfig`; a key without one fails. An entry gives another value and says where
the difference shows: in two whole runs (`every_key_runs.py`), or in the part that the key configures.
"""

import asyncio
import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import whet.rl.fit
import whet.rl.learner.forward.decoder
import whet.rl.plan
import whet.rl.run
from whet.config import all_keys
from whet.errors import ConfigError, LearnerLostError, TrainingError
from whet.inference.weights.model_weights import read_checkpoint
from whet.rl.algorithms import LossTerms, ScoredGroup, advantages_of, find
from whet.rl.config import RunConfig, load_run_config
from whet.rl.data.adaptive_weights import AdaptiveWeights
from whet.rl.data.assembly import Assembled, RewardShaper, assemble
from whet.rl.data.batch import PackedBatch
from whet.rl.data.curriculum import DrawnTask, MixedCurriculum
from whet.rl.data.passes import passes_over, selected
from whet.rl.data.preferences import with_preferences
from whet.rl.data.values import with_values
from whet.rl.learner.forward.layout import micro_batches
from whet.rl.learner.make import make_learner
from whet.rl.learner.protocol import OptimParams
from whet.rl.loop.endpoint_teacher import EndpointTeacher
from whet.rl.loop.group import Group
from whet.rl.loop.group_runner import TrainingEnv
from whet.rl.loop.orchestrator import Orchestrator
from whet.rl.loop.training_loop import HeldOutEvaluation
from whet.rl.monitors.protocol import EvalReport, Monitor, RunPlan, StepReport
from whet.rl.monitors.trackers import trackers
from whet.rl.placement import placement
from whet.rl.plan import plan_training
from whet.rl.run import run_training
from whet.rl.sections.algorithm import INITIAL
from whet.rl.sections.spellings import REASONS
from whet.rl.sections.training import TrainingEnvConfig
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.supervision import backends
from whet.rl.supervision.ending import Budget, reason_to_stop
from whet.rl.supervision.lifecycle import TrainingRun
from whet.rl.supervision.watchdog import WaitTable
from whet.rl.supervision.watchdog_thread import Watchdog
from whet.rollouts.totals import EvalScore
from whet.rollouts.workers.started import LocalProcess
from whet.system.redaction import Redactor

_spec = importlib.util.spec_from_file_location("every_key_runs", Path(__file__).with_name("every_key_runs.py"))
assert _spec is not None
assert _spec.loader is not None
runs = sys.modules["every_key_runs"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(runs)

MINIMAL = """
name = "r"
model = "{model}"
batch_size = 32
[[env]]
id = "reverse-text"
[[env]]
id = "calculator"
[[eval.env]]
id = "reverse-text"
"""
DESIGNED = """
name model max_steps batch_size rollouts_per_example learning_rate max_async_level max_off_policy_steps
oversampling_factor max_concurrent workers_per_env seed env_file sampling.max_tokens sampling.temperature sampling.top_p
sampling.top_k sampling.min_p sampling.stop sampling.seed sampling.extra_body sampling.enable_thinking
sampling.temp_scheduler env.id env.weight env.args env.taskset env.harness buffer.env_ratios
buffer.online_difficulty_filtering buffer.easy_threshold buffer.hard_threshold buffer.easy_fraction
buffer.hard_fraction buffer.difficulty_threshold algorithm.advantage algorithm.loss lora.rank lora.alpha optimizer.type
optimizer.betas optimizer.weight_decay optimizer.max_grad_norm optimizer.schedule optimizer.warmup_steps eval.interval
eval.num_examples eval.rollouts_per_example eval.env eval.sampling checkpointing.save_every_n_steps
checkpointing.keep_n_checkpoints wandb.project wandb.name inference.engine inference.tensor_parallel_size
inference.pipeline_parallel_size inference.gpu_memory_utilization inference.base_url deployment.num_gpus
deployment.num_train_gpus deployment.num_infer_gpus deployment.colocate deployment.ray_address
"""
"""The keys of the planned config."""


@dataclass(frozen=True)
class InRuns:
    """`read` differs between the two whole runs."""

    read: Callable[[Any], Any]


@dataclass(frozen=True)
class InPart:
    """`read` of a config differs with `--key value`; `beside` is set in both."""

    read: Callable[[RunConfig], Any]
    value: str
    beside: tuple[str, ...] = ()
    below: str = ""  # of a table: where in it the value is


@dataclass(frozen=True)
class Refused:
    """There is one thing to choose so far; another is an error that says so."""

    value: str
    says: str


# Parts of a run, and what shows of them.


def refused_for_memory(config: RunConfig) -> bool:
    """Whether it is, on a machine without memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whet.rl.fit, "memory_available", lambda: 0)
        try:
            plan_training(config).check_memory()
        except ConfigError:
            return True
    return False


_kept = tempfile.TemporaryDirectory()


def new_folder() -> Path:
    """One that is gone when the tests are over."""
    return Path(tempfile.mkdtemp(dir=_kept.name))


@cache
def _learn_model() -> Path:
    return runs.small_model(new_folder(), 16)


def batch() -> PackedBatch:
    """Four sequences of policies that differ from the learner's, with advantages of both signs."""
    random = np.random.default_rng(0)
    lengths = [9, 12, 7, 15]
    tokens = sum(lengths)
    cu_seqlens = np.cumsum([0, *lengths], dtype=np.int32)
    trained = np.ones(tokens, dtype=np.bool_)
    for start in cu_seqlens[:-1]:
        trained[start : start + 3] = False
    return PackedBatch(
        ids=random.integers(5, 200, tokens).astype(np.int32),
        trained=trained,
        logprobs=np.where(trained, -random.uniform(0.05, 9.0, tokens), 0).astype(np.float32),
        advantages=np.where(trained, np.repeat([1.0, -1.0, 0.5, -0.7], lengths), 0).astype(np.float32),
        versions=np.where(trained, 0, -1).astype(np.int32),
        cu_seqlens=cu_seqlens,
        temperatures=np.ones(tokens, np.float32),
        rollouts=("a", "b", "c", "d"),
    )


class Made(Exception):
    """What a part would be made with is known."""


def unread(section: TrainingEnvConfig) -> TrainingEnv:
    """The environment of a section, without its package and its rows."""
    environment: Any = SimpleNamespace(tool_defs=None)
    return TrainingEnv(section.label, environment, [])


def made(config: RunConfig, part: str) -> dict[str, Any]:
    """The options with which a run makes its `part`."""
    found = dict[str, Any]()

    def note(*arguments: Any, **options: Any) -> Any:
        found.update(options)
        raise Made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whet.rl.plan, "training_env", unread)
        patch.setattr(whet.rl.plan, "load_environment", lambda *_, **__: None)
        patch.setattr(backends, "make_learner", lambda *_, **__: SimpleNamespace(close=lambda: None))
        patch.setattr(backends, "local_ranks", lambda *_, **__: note)
        patch.setattr(backends, part, note)
        with pytest.raises(Made):
            run_training(config, json_output=True)
    return found


def at_once(config: RunConfig) -> int | None:
    """Most bytes of a device that engine and learner use in turn."""
    return placement(config, {"learner": "cpu", "sampler": "cpu"}, 0, {"learner: weights": 1}).at_once


def missing(config: RunConfig) -> tuple[str, ...]:
    """What the run would lack here."""
    return plan_training(config).missing


def first_process(config: RunConfig) -> str:
    """Which process of its own a run starts first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whet.rl.plan, "training_env", unread)
        patch.setattr(whet.rl.plan, "load_environment", lambda *_, **__: None)
        for part in ("EngineProcess", "local_ranks", "make_learner"):

            def note(*_: Any, part: str = part, **__: Any) -> Any:
                raise Made(part)

            patch.setattr(backends, part, note)
        with pytest.raises(Made) as caught:
            run_training(config, json_output=True)
    return str(caught.value)


def learner_of(config: RunConfig) -> Any:
    return make_learner(_learn_model(), **{**made(config, "make_learner"), "threads": None})


def learned(config: RunConfig) -> str:
    """A digest of the weights after four steps, as the run makes and drives its learner."""
    learner = learner_of(config)
    shown, selects = batch(), find(config.algorithm.loss, "loss").selects
    if selects is not None:
        chosen = selected(selects, shown.logprobs, shown, config.algorithm, np.random.default_rng(0))
        shown = replace(shown, selected=chosen)
    driver: Any = SimpleNamespace(config=config, learner=learner)
    for step in range(4):
        if config.distilled:  # after a step away from the teacher
            shown = replace(shown, distilled=np.full(shown.sequences, step > 0))
        loss = learner.forward_backward(shown, config.algorithm)
        learner.optim_step(Orchestrator._params(driver, loss.tokens))
    with tempfile.TemporaryDirectory() as directory:
        learner.export_merged(Path(directory))
        weights = read_checkpoint(Path(directory))
    learner.close()
    return hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()


def distilled(config: RunConfig) -> str:
    """The same where the first weights are the teacher."""
    return learned(config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"reference": INITIAL})}))


def checkpointed_layers(config: RunConfig) -> int:
    """Layers that are computed again for their gradient."""
    counted = 0
    compute = whet.rl.learner.forward.decoder.checkpoint

    def count(*arguments: Any, **options: Any) -> Any:
        nonlocal counted
        counted += 1
        return compute(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whet.rl.learner.forward.decoder, "checkpoint", count)
        learner_of(config).forward_backward(batch(), config.algorithm)
    return counted


def source(config: RunConfig) -> Any:
    """Where the run's batches would come from, over two environments of four tasks."""
    environments = [TrainingEnv(name, None, [{"example_id": i} for i in range(4)]) for name in ("a", "b")]  # type: ignore[arg-type,typeddict-item]
    client: Any = SimpleNamespace(engine=SimpleNamespace(version=0))
    parts: Any = dict.fromkeys(
        ("directory", "learner", "monitor", "watchdog", "ending", "memory", "lengths", "last_step")
    )
    here: Any = SimpleNamespace(start_worker=LocalProcess)
    run = whet.rl.run.ReinforcementRun(
        config=config, environments=environments, held_out=[], client=client, backend=here, **parts
    )
    return run.make_source()


def worker_processes(config: RunConfig) -> int:
    """That run the rollouts of two environments."""
    pool = source(config).runner.workers
    return 0 if pool is None else pool.processes


def drawn(config: RunConfig) -> list[tuple[int, int]]:
    """Which tasks are drawn, when each is as easy as its number and its environment say."""
    curriculum, found = source(config).curriculum, []
    for _ in range(40):
        task = curriculum.next_task()
        found.append((task.environment, task.index))
        curriculum.observe(task, (0.0, 0.3, 0.7, 1.0)[task.index])
    return found


def rollout(reward: float, completion: list[int], truncated: bool = False) -> Any:
    tokens = {
        "prompt_ids": [1, 2],
        "completion_ids": completion,
        "completion_mask": [1] * len(completion),
        "completion_logprobs": [-1.0] * len(completion),
        "policy_version": [[0, len(completion)]],
    }
    return {"example_id": 0, "reward": reward, "is_truncated": truncated, "trajectory": [{"tokens": tokens}]}


def assembled(config: RunConfig) -> Any:
    """Advantages and trained tokens of two batches."""
    shaper, found = RewardShaper(config.algorithm), []
    for scale in (1.0, 3.0):
        groups = [
            Group(
                0, DrawnTask(0, 0, 0, 0), "e", [rollout(scale, [3, 4] * 6), rollout(0.25, [5], True), rollout(0.5, [7])]
            ),
            Group(
                1, DrawnTask(1, 0, 1, 0), "e", [rollout(2.0, [3]), rollout(scale, [5, 6, 5, 6, 8]), rollout(0.0, [9])]
            ),
        ]
        done = assemble(groups, config.algorithm, shaper, temperature=1.0)
        weights = None if done.batch.weights is None else np.round(done.batch.weights, 6).tolist()
        found.append((np.round(done.batch.advantages, 6).tolist(), done.batch.trained.tolist(), weights))
    return found


def credited(config: RunConfig) -> Any:
    """Advantages of a group of two rollouts, of two turns and of one, whose first turns earn something."""
    states = [rollout(1.0, [3, 4]), rollout(0.5, [5])]
    for state, turns in zip(states, (2, 1), strict=True):
        state["trajectory"] = [{**state["trajectory"][0], "reward": float(turns)}, *state["trajectory"] * (turns - 1)]
    group = ScoredGroup(np.array([1.0, 0.5]), states)
    (found,) = advantages_of([group], config.algorithm.advantage, config.algorithm.advantage_constants)
    return [values.tolist() for values in found]


def valued(config: RunConfig) -> Any:
    """What a critic expects after two optimiser steps on a batch."""
    learner, driver = learner_of(config), SimpleNamespace(config=config)
    states = [rollout(1.0, [3, 4]), rollout(0.5, [5, 6, 7])]
    group = Group(0, DrawnTask(0, 0, 0, 0), "e", states)
    done = assemble([group], config.algorithm, RewardShaper(config.algorithm), temperature=1.0)
    done = with_values(done, [group], learner.token_values(done.batch)[1], config.algorithm)
    for _ in range(2):
        loss = learner.forward_backward(done.batch, config.algorithm)
        driver.learner = learner
        learner.optim_step(Orchestrator._params(cast(Any, driver), loss.tokens))
    return learner.token_values(done.batch)[1].tolist()


def paired(config: RunConfig) -> list[list[float]]:
    """What the better and the worse rollout of a group weigh."""
    group = Group(0, DrawnTask(0, 0, 0, 0), "e", [rollout(1.0, [3, 4]), rollout(0.5, [5, 6, 7])])
    done = assemble([group], config.algorithm, RewardShaper(config.algorithm), temperature=1.0)
    return with_preferences(done, done.batch.advantages.astype(float), config.algorithm.dpo_beta)[0].advantages


def told(config: RunConfig) -> list[tuple[int, str]]:
    """When a wait that never ends is told, acted on and given up, after one that took 100 s."""
    waits, found = WaitTable(config.watchdog), []
    for kind in ("first", "known"):
        if kind == "known":
            waits.end(waits.begin(kind, "a", "b", 0.0), 100.0)
        wait = waits.begin(kind, "a", "b", 0.0, lambda _: None)
        for now in range(0, 12_000, 10):
            found += [(now, stall.verdict) for stall in waits.overdue(float(now))]
        waits.end(wait, 12_000.0, usual=False)
    return found


def restarts(config: RunConfig) -> int:
    """How often a learner that is lost again and again is started again."""
    parts = {"watchdog": Watchdog(), "monitor": Monitor(), "directory": RunDirectory(Path("nowhere"))}
    run: Any = SimpleNamespace(config=config, **parts)
    for number in range(1, 100):
        try:
            TrainingRun._check_restart(run, LearnerLostError("it is gone"), number, stopped=False)
        except TrainingError:
            return number - 1
    raise AssertionError("there is no end to it")


def spent(config: RunConfig) -> str | None:
    return Budget(config.budget, time=100.0, tokens=1000, cost=1.0).spent(1.0)


def stopped(config: RunConfig) -> list[str | None]:
    """Why the run ends after each of some evaluations."""
    assert config.early_stop is not None
    reports, found = [], []
    for step, (reward, other) in enumerate(((0.3, 0.1), (0.5, 0.2), (0.5, 0.3), (0.51, 0.4), (0.2, 0.5), (0.2, 0.6))):
        scores = [
            EvalScore(name, "greedy", value, {"exact": 1 - value}, 4)
            for name, value in (("reverse-text", reward), ("b", other))
        ]
        reports.append(EvalReport("during", step, step, scores))
        found.append(reason_to_stop(config.early_stop, reports))
    return found


def tracked(config: RunConfig) -> Any:
    """What the tracker's library is asked for, and sent after a step."""
    wandb, trackio = pytest.importorskip("wandb"), pytest.importorskip("trackio")
    asked: list[Any] = []
    apart = ("config", "settings", "id", "dir")
    run = SimpleNamespace(
        id="id",
        name="n",
        project="p",
        log=lambda *given, **named: asked.append(given),
        define_metric=lambda *_, **__: None,
    )

    def begin(**options: Any) -> Any:
        asked.append({name: value for name, value in options.items() if name not in apart})
        return run

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setenv("WANDB_API_KEY", "0" * 40)
        patch.setattr(wandb, "init", begin)
        patch.setattr(wandb, "Table", lambda columns, data: (columns, data))
        patch.setattr(trackio, "init", begin)
        (monitor,) = trackers(config, Redactor())
        monitor.start(RunPlan("r", Path(directory), "m", ["e"], 4, 2, 1))
        sample = {"environment": "e", "prompt": "p", "completion": "c", "reward": 1.0, "advantage": 0.0}
        monitor.step(StepReport(1, {"reward/mean": 1.0}, sample))
    return asked


@cache
def adapter() -> Path:
    """One that training may begin with."""
    directory = new_folder() / "adapter"
    config = load(("--lora.rank", "2", "--seed", "7"))
    learner = learner_of(config)
    learner.forward_backward(batch(), config.algorithm)
    learner.optim_step(OptimParams(1.0, 1))
    learner.export(directory)
    learner.close()
    return directory


@cache
def experts() -> Path:
    """A model with a mixture of experts."""
    return runs.small_model(new_folder(), 16, experts=4)


def loss_of_our_own(given: Any, config: Any) -> Any:
    return LossTerms(given.logprobs_N * config.loss_args.get("weight", 1.0))


def advantage_of_our_own(groups: Any, *, weight: float = 1.0) -> Any:
    return [group.rewards_G * weight for group in groups]


def backwards(pools: Any, seed: int) -> MixedCurriculum:
    return MixedCurriculum(list(reversed(pools)), seed=seed)


VLLM = ("--inference.engine", "vllm")
ASYNC = ("--max_async_level", "2")
OWN_ADVANTAGE = ("--algorithm.advantage", "every_key:advantage_of_our_own")
OWN_LOSS = ("--algorithm.loss", "every_key:loss_of_our_own")
DIFFICULTY = ("--buffer.online_difficulty_filtering", "true")
EVALUATING = ("--eval.interval", "1")
STOPS = (*EVALUATING, "--early_stop.patience", "2")
LORA = ("--lora.rank", "2")
PLAIN_SGD = ("--optimizer.type", "sgd", "--optimizer.max_grad_norm", "0")
STEP = ("--max_steps", "4", "--learning_rate", "1e-2")
COSINE = (*STEP, "--optimizer.schedule", "cosine")
KL = ("--algorithm.kl_coef", "0.5")
CLIP_COV = ("--algorithm.loss", "clip_cov", "--algorithm.cov_low", "0.1", "--algorithm.cov_share", "0.1")
GAE = ("--algorithm.advantage", "gae")
RETURNS = ("--algorithm.advantage", "step_returns")
LENGTH = ("--algorithm.length_penalty", "0.5", "--algorithm.length_penalty_full", "6")
REPEATED = ("--algorithm.repetition_penalty", "1", "--algorithm.repetition_ngram", "2")


RECOMPUTED = ("--algorithm.old_logprobs", "recomputed", "--algorithm.tis_limit", "1.5")


def passes(config: RunConfig) -> Any:
    """What the optimiser steps of a batch learn from, where the learner was apart from the sampler before."""
    whole = Assembled(batch(), [], [], {}, [[1, 1], [1, 1]], [1.0, 1.0])
    return [
        (
            one.tokens.tolist(),
            one.batch.logprobs.tolist(),
            None if one.batch.weights is None else one.batch.weights.sum(),
        )
        for one in passes_over(whole, config.algorithm, batch().logprobs / 2, seed=(0, 1))
    ]


def controlled(config: RunConfig) -> float:
    """The weights of KL and entropy after a step in which the KL was large and the entropy small."""
    adaptive = AdaptiveWeights(config.algorithm)
    adaptive.after_step({"policy/kl_ref": 1.0, "policy/entropy": 0.1})
    return adaptive.algorithm.kl_coef + adaptive.algorithm.entropy_coef


def taught(config: RunConfig) -> Any:
    """Whether the rollouts of its environments are learned from a teacher."""
    shaper = RewardShaper(config.algorithm)
    groups = [Group(0, DrawnTask(0, 0, 0, 0), config.env[0].label, [rollout(1.0, [3, 4])])]
    done = assemble(groups, config.algorithm, shaper, temperature=1.0, distilled=config.distilled)
    return None if done.batch.distilled is None else done.batch.distilled.tolist()


def at_endpoint(config: RunConfig) -> Any:
    """How the teacher of a run is reached."""
    assert config.teacher is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINE", "key")
        teacher = EndpointTeacher(config.teacher, None)
    client = teacher._client
    settings = (str(client.base_url), client.api_key, client.timeout.read, client.max_retries)
    return (*settings, teacher._model, teacher._free._value)


def training(setting: str) -> InRuns:
    return InRuns(lambda seen: seen.asked(setting))


def evaluated(config: RunConfig) -> Any:
    """How the held-out tasks of an environment are attempted."""
    asked: list[Any] = []

    async def note(env: Any, client: Any, model: str, **named: Any) -> Any:
        asked.append((named["max_retries"], named["timeout"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("whet.rl.loop.training_loop.evaluate_environment", note)
        asyncio.run(
            HeldOutEvaluation(config, [("e", cast(Any, object()))], cast(Any, None), cast(Any, None))("before", 0, 0)
        )
    return asked


def held_out(setting: str) -> InRuns:
    return InRuns(lambda seen: seen.asked(setting, held_out=True))


def moments(seen: Any) -> set[str]:
    return {row["moment"] for row in seen.evaluations}


TAUGHT = ("--env.0.algorithm", "opd", "--algorithm.reference", "whet/tiny")
TEACHER = ("--env.0.algorithm", "opd", "--teacher.url", "http://127.0.0.1:1/v1")
KEYS: dict[str, InRuns | InPart | Refused] = {
    "name": InRuns(lambda seen: seen.directory.name),
    "model": InRuns(lambda seen: read_checkpoint(seen.directory / "model")["model.norm.weight"].shape),
    "max_steps": InRuns(lambda seen: len(seen.metrics)),
    "batch_size": InRuns(lambda seen: len(seen.rollouts())),
    "rollouts_per_example": InRuns(lambda seen: [row["group"] for row in seen.rollouts()].count("0")),
    "learning_rate": InRuns(lambda seen: seen.metrics[-1]["optim/lr"]),
    "max_async_level": InPart(first_process, "1"),
    "oversampling_factor": InPart(lambda config: source(config).buffer.lead.slots(0), "1.5", ASYNC),
    "max_off_policy_steps": InPart(lambda config: source(config).buffer.lead.too_old(0, 4), "3", ASYNC),
    "workers_per_env": InPart(worker_processes, "3"),
    "max_retries": InPart(lambda config: source(config).runner.recipe.max_retries, "5"),
    "max_concurrent": InRuns(lambda seen: seen.most_at_once),
    "seed": training("seed"),
    "env_file": InRuns(lambda seen: "told" in str(seen.rollouts()[0]["prompt"])),
    "runs_directory": InRuns(lambda seen: seen.directory.parent.name),
    "sampling.max_tokens": training("max_tokens"),
    "sampling.temperature": InPart(lambda config: source(config).runner.sampling_args["temperature"], "0.5"),
    "sampling.top_p": training("top_p"),
    "sampling.top_k": training("top_k"),
    "sampling.min_p": training("min_p"),
    "sampling.stop": training("stop"),
    "sampling.enable_thinking": InRuns(
        lambda seen: {tuple(request.prompt_ids[-4:]) == (263, 272, 264, 272) for request in seen.trained}
    ),
    "sampling.temp_scheduler.type": InPart(
        lambda config: config.sampling.temp_scheduler and config.sampling.temp_scheduler.at(1, 10),
        "cosine",
        ("--sampling.temp_scheduler.start", "1", "--sampling.temp_scheduler.end", "0.5"),
    ),
    "sampling.temp_scheduler.start": training("temperature"),
    "sampling.temp_scheduler.end": InRuns(lambda seen: seen.metrics[-1].get("sampling/temperature")),
    "sampling.temp_scheduler.steps": InPart(
        lambda config: config.sampling.temp_scheduler and config.sampling.temp_scheduler.at(1, 10),
        "2",
        ("--sampling.temp_scheduler.start", "1", "--sampling.temp_scheduler.end", "0.5"),
    ),
    "env.id": InPart(lambda config: whet.rl.plan.load_environments(config)[0][0].rows[0]["prompt"], "guess-number"),
    "env.weight": InRuns(lambda seen: [row["environment"] for row in seen.rollouts()].count("first")),
    "env.algorithm": InPart(taught, "opd", ("--algorithm.reference", "whet/tiny", "--algorithm.kl_coef", "0.1")),
    "teacher.url": InPart(at_endpoint, "http://127.0.0.1:2/v1", TEACHER),
    "teacher.model": InPart(at_endpoint, "big", TEACHER),
    "teacher.api_key_var": InPart(at_endpoint, "MINE", TEACHER),
    "teacher.max_concurrent": InPart(at_endpoint, "2", TEACHER),
    "teacher.timeout": InPart(at_endpoint, "9", TEACHER),
    "teacher.max_retries": InPart(at_endpoint, "9", TEACHER),
    "env.hint_prompt": InPart(lambda config: config.hinted, "So: {hint}", ("--env.0.algorithm", "opsd")),
    "env.max_concurrent": InPart(lambda config: whet.rl.plan.load_environments(config)[0][0].max_concurrent, "1"),
    "env.loss_weight": InRuns(lambda seen: seen.metrics[0]["optim/grad_norm"]),
    "env.name": InRuns(lambda seen: {row["environment"] for row in seen.rollouts()}),
    "env.args": InRuns(lambda seen: max(row["example_id"] for row in seen.rollouts() + seen.rollouts(2)) < 5),
    "env.taskset": InPart(lambda config: config.env[0].loader_args(), "x", below=".split"),
    "env.harness": InPart(lambda config: config.env[0].loader_args(), "x", below=".id"),
    "buffer.env_ratios": InPart(drawn, "[3, 1]"),
    "buffer.difficulty_threshold": InPart(lambda config: source(config).new_filter().min_variance, "0.1"),
    "buffer.max_errored_groups": InPart(lambda config: source(config).new_filter().max_errored_groups, "3"),
    "buffer.min_group_size": InPart(lambda config: source(config).new_filter().min_group_size, "3"),
    "buffer.online_difficulty_filtering": InPart(drawn, "true"),
    "buffer.easy_threshold": InPart(drawn, "0.7", DIFFICULTY),
    "buffer.hard_threshold": InPart(drawn, "0.3", DIFFICULTY),
    "buffer.easy_fraction": InPart(drawn, "0.5", DIFFICULTY),
    "buffer.hard_fraction": InPart(drawn, "0.5", DIFFICULTY),
    "buffer.curriculum": InPart(drawn, "every_key:backwards", ("--env.0.weight", "3")),
    "algorithm.loss": InPart(learned, "cispo", STEP),
    "algorithm.loss_args": InPart(learned, "2", (*STEP, *OWN_LOSS, *PLAIN_SGD), ".weight"),
    "algorithm.eps_low": InPart(learned, "0.9", (*STEP, "--algorithm.loss", "cispo")),
    "algorithm.eps_high": InPart(learned, "5", (*STEP, "--algorithm.loss", "cispo")),
    "algorithm.mask_threshold": InPart(learned, "0.001", STEP),
    "algorithm.mask_penalty": InPart(learned, "0.5", STEP),
    "algorithm.dpo_beta": InPart(paired, "0.9", ("--algorithm.loss", "dpo")),
    "algorithm.dro_beta": InPart(learned, "0.9", (*STEP, "--algorithm.loss", "dro")),
    "algorithm.cov_share": InPart(learned, "0.5", (*STEP, *CLIP_COV)),
    "algorithm.cov_low": InPart(learned, "0.9", (*STEP, *CLIP_COV)),
    "algorithm.cov_high": InPart(learned, "0.9", (*STEP, *CLIP_COV)),
    "algorithm.cov_kl": InPart(learned, "9", (*STEP, "--algorithm.loss", "kl_cov")),
    "algorithm.tis_limit": InPart(learned, "1.01", STEP),
    "algorithm.mis_limit": InPart(learned, "1.01", STEP),
    "algorithm.mis_level": InPart(learned, "geometric", (*STEP, "--algorithm.mis_limit", "20")),
    "algorithm.kl_coef": InPart(learned, "0.5", STEP),
    "algorithm.kl_estimator": InPart(learned, "k1", (*STEP, *KL)),
    "algorithm.kl_in": InPart(learned, "reward", (*STEP, *KL)),
    "algorithm.kl_target": InPart(controlled, "0.1", KL),
    "algorithm.kl_gain": InPart(controlled, "0.5", (*KL, "--algorithm.kl_target", "0.1")),
    "algorithm.entropy_coef": InPart(learned, "0.5", STEP),
    "algorithm.entropy_target": InPart(controlled, "0.2"),
    "algorithm.entropy_step": InPart(controlled, "0.5", ("--algorithm.entropy_target", "0.2")),
    "algorithm.reference": InPart(lambda config: made(config, "make_learner")["reference"], "whet/tiny", KL),
    "algorithm.critic.learning_rate": InPart(valued, "0.5", GAE),
    "algorithm.critic.gae_lambda": InPart(valued, "0.5", GAE),
    "algorithm.critic.value_clip": InPart(valued, "1e-6", GAE),
    "algorithm.reset_reference": InPart(learned, "2", (*STEP, *KL)),
    "algorithm.distill_top_k": InPart(distilled, "4", (*STEP, *TAUGHT)),
    "algorithm.reference_decay": InPart(learned, "0.5", (*STEP, *KL)),
    "algorithm.reset_optimizer": InPart(learned, "true", (*STEP, *KL, "--algorithm.reset_reference", "2")),
    "algorithm.advantage": InPart(assembled, "rloo"),
    "algorithm.advantage_args": InPart(assembled, "2", OWN_ADVANTAGE, ".weight"),
    "algorithm.discount": InPart(credited, "0.5", RETURNS),
    "algorithm.returns_baseline": InPart(credited, "group", RETURNS),
    "algorithm.returns_scale": InPart(credited, "true", RETURNS),
    "algorithm.returns_outcome": InPart(credited, "whole", RETURNS),
    "algorithm.reward_clip": InPart(assembled, "[0.2, 0.6]"),
    "algorithm.length_penalty": InPart(assembled, "0.1", LENGTH),
    "algorithm.length_penalty_start": InPart(assembled, "2", LENGTH),
    "algorithm.length_penalty_full": InPart(assembled, "4", LENGTH),
    "algorithm.repetition_penalty": InPart(assembled, "0.5", REPEATED),
    "algorithm.repetition_ngram": InPart(assembled, "3", REPEATED),
    "algorithm.reward_norm": InPart(assembled, "running"),
    "algorithm.router_replay": InPart(
        lambda config: made(config, "load_policy")["record_experts"], "true", ("--model", "EXPERTS")
    ),
    "algorithm.renormalise_cuts": InPart(lambda config: made(config, "load_policy")["record_kept"], "true"),
    "algorithm.mask_truncated": InPart(assembled, "true"),
    "algorithm.minibatches": InPart(passes, "2"),
    "algorithm.epochs": InPart(passes, "2"),
    "algorithm.old_logprobs": InPart(passes, "recomputed"),
    "algorithm.tis_level": InPart(passes, "sequence", RECOMPUTED),
    "algorithm.recipe": InPart(assembled, "gspo"),
    "algorithm.aggregation": InPart(assembled, "sequence_mean"),
    "algorithm.aggregation_length": InPart(assembled, "3", ("--algorithm.aggregation", "constant")),
    "lora.rank": InPart(learned, "3", (*STEP, *LORA)),
    "lora.alpha": InPart(learned, "64", (*STEP, *LORA)),
    "lora.base": InPart(lambda config: made(config, "load_policy")["base_dtype"], "packed", LORA),
    "lora.use_rslora": InPart(learned, "true", (*STEP, *LORA)),
    "lora.dropout": InPart(learned, "0.5", (*STEP, *LORA)),
    "lora.target_modules": InPart(learned, '["q_proj"]', (*STEP, *LORA)),
    "lora.path": InPart(learned, "ADAPTER", (*STEP, *LORA)),
    "lora.merge": InRuns(lambda seen: len(seen.names("model")) > 0 and len(seen.names("adapters")) > 0),
    "optimizer.type": InPart(learned, "muon", STEP),
    "optimizer.betas": InPart(learned, "[0.5, 0.5]", STEP),
    "optimizer.weight_decay": InPart(learned, "0.1", STEP),
    "optimizer.momentum": InPart(learned, "0.1", (*STEP, "--optimizer.type", "sgd")),
    "optimizer.muon_learning_rate": InPart(learned, "0.1", (*STEP, "--optimizer.type", "muon")),
    "optimizer.max_grad_norm": InPart(learned, "1e-3", (*STEP, "--optimizer.type", "sgd")),
    "optimizer.schedule": InPart(learned, "linear", STEP),
    "optimizer.warmup_steps": InPart(learned, "3", STEP),
    "optimizer.decay_start": InPart(learned, "0.6", COSINE),
    "optimizer.min_lr_ratio": InPart(learned, "0.5", COSINE),
    "learner.ranks": InPart(lambda config: [part.process for part in plan_training(config).placement.parts], "2"),
    "learner.shard_ranks": InPart(
        lambda config: [part.holds for part in plan_training(config).placement.parts], "2", ("--learner.ranks", "4")
    ),
    "learner.rank_timeout_seconds": InPart(
        lambda config: made(config, "local_ranks")["timeout_s"], "30", ("--learner.ranks", "2")
    ),
    "learner.max_restarts": InPart(restarts, "1", ASYNC),
    "learner.micro_batch_tokens": InPart(
        lambda config: len(micro_batches(batch(), made(config, "make_learner")["computation"].micro_batch_tokens)), "16"
    ),
    "learner.activation_checkpointing": InPart(checkpointed_layers, "true"),
    "learner.compile": InPart(lambda config: made(config, "make_learner")["computation"].compile, "true"),
    "learner.context_parallel_size": Refused("2", "a sequence is computed on one device"),
    "learner.device": InPart(lambda config: made(config, "make_learner")["computation"].device, "cpu"),
    "learner.dtype": InPart(learned, "bfloat16", STEP),
    "learner.weights_dtype": InPart(learned, "bfloat16", (*STEP, "--learner.dtype", "bfloat16")),
    "learner.base_dtype": InPart(
        lambda config: made(config, "make_learner")["computation"].base_dtype,
        "bfloat16",
        ("--learner.dtype", "bfloat16", "--lora.rank", "4"),
    ),
    "learner.keep_token_details": InRuns(lambda seen: sorted(seen.rollouts()[0]["turns"][0])),
    "learner.peak_tflops": InRuns(lambda seen: "perf/mfu" in seen.metrics[0]),
    "eval.interval": InRuns(lambda seen: "during" in moments(seen)),
    "eval.num_examples": InRuns(lambda seen: 3 in {row["rollouts"] for row in seen.evaluations}),
    "eval.rollouts_per_example": InRuns(lambda seen: {row["rollouts"] for row in seen.evaluations} == {3, 6}),
    "eval.before": InRuns(lambda seen: "before" in moments(seen)),
    "eval.after": InRuns(lambda seen: "after" in moments(seen)),
    "eval.greedy": InRuns(lambda seen: "greedy" in {row["sampling"] for row in seen.evaluations}),
    "eval.sampling.max_tokens": held_out("max_tokens"),
    "eval.sampling.temperature": held_out("temperature"),
    "eval.sampling.top_p": held_out("top_p"),
    "eval.sampling.top_k": held_out("top_k"),
    "eval.sampling.min_p": held_out("min_p"),
    "eval.sampling.stop": held_out("stop"),
    "eval.sampling.enable_thinking": InPart(
        lambda config: config.eval_sampling().args().get("enable_thinking"), "true", ()
    ),
    "eval.max_retries": InPart(evaluated, "1"),
    "eval.timeout": InPart(evaluated, "5"),
    "eval.env.id": InRuns(lambda seen: len(seen.evaluated) > 0),
    "eval.env.name": InRuns(lambda seen: {row["environment"] for row in seen.evaluations}),
    "eval.env.weight": Refused("2", "no effect"),
    "eval.env.loss_weight": Refused("2", "no effect"),
    "eval.env.max_concurrent": Refused("2", "no effect"),
    "eval.env.algorithm": Refused("opd", "no effect"),
    "eval.env.hint_prompt": Refused("So: {hint}", "no effect"),
    "eval.env.args": InRuns(lambda seen: len({tuple(request.prompt_ids) for request in seen.evaluated})),
    "eval.env.taskset": InPart(lambda config: config.eval.env[0].loader_args(), "x", below=".split"),
    "eval.env.harness": InPart(lambda config: config.eval.env[0].loader_args(), "x", below=".id"),
    "checkpointing.save_every_n_steps": InRuns(lambda seen: seen.names("checkpoints")),
    "checkpointing.export_dtype": InRuns(
        lambda seen: read_checkpoint(seen.directory / "model")["model.norm.weight"].dtype
    ),
    "checkpointing.keep_n_checkpoints": InRuns(lambda seen: seen.first_checkpoint in seen.names("checkpoints")),
    "budget.max_time": InPart(spent, "60"),
    "budget.max_tokens": InPart(spent, "500"),
    "budget.max_rollouts": InPart(lambda config: config.last_step, "64"),
    "budget.max_cost": InPart(spent, "0.5"),
    "early_stop.metric": InPart(stopped, "exact", STOPS),
    "early_stop.environment": InPart(stopped, "reverse-text", STOPS),
    "early_stop.patience": InPart(stopped, "1", (*EVALUATING, "--early_stop.min_delta", "0.2")),
    "early_stop.min_delta": InPart(stopped, "0.2", STOPS),
    "early_stop.collapse": InPart(stopped, "0.05", (*STOPS, "--early_stop.environment", "reverse-text")),
    "watchdog.report_seconds": InPart(told, "400"),
    "watchdog.act_seconds": InPart(told, "2000"),
    "watchdog.act_factor": InPart(told, "30"),
    "watchdog.first_seconds": InPart(told, "700"),
    "wandb.project": InPart(tracked, "mine", ("--wandb.name", "n")),
    "wandb.name": InPart(tracked, "mine", ("--wandb.project", "p")),
    "wandb.entity": InPart(tracked, "mine", ("--wandb.project", "p")),
    "wandb.group": InPart(tracked, "mine", ("--wandb.project", "p")),
    "wandb.tags": InPart(tracked, '["mine"]', ("--wandb.project", "p")),
    "wandb.offline": InPart(tracked, "true", ("--wandb.project", "p")),
    "wandb.samples_every": InPart(tracked, "1", ("--wandb.project", "p")),
    "trackio.project": InPart(tracked, "mine", ("--trackio.name", "n")),
    "trackio.name": InPart(tracked, "mine", ("--trackio.project", "p")),
    "trackio.group": InPart(tracked, "mine", ("--trackio.project", "p")),
    "inference.engine": InPart(lambda config: config.engine, "vllm"),
    "inference.device": InPart(lambda config: made(config, "load_policy")["device"], "cpu"),
    "inference.dtype": InRuns(lambda seen: seen.dtypes),
    "inference.base_url": InPart(lambda config: config.gpus.servers, "http://127.0.0.1:8000"),
    "inference.servers": InPart(lambda config: config.gpus.servers, "2"),
    "inference.python": InPart(missing, "/no/python", VLLM),
    "inference.tensor_parallel_size": InPart(lambda config: config.gpus.infer, "2"),
    "inference.pipeline_parallel_size": InPart(lambda config: config.gpus.infer, "2"),
    "inference.gpu_memory_utilization": InPart(lambda config: plan_training(config).placement.servers, "0.5", VLLM),
    "inference.max_model_len": InPart(lambda config: config.engine, "64"),
    "inference.server_args": InPart(lambda config: config.engine, "true", below=".enforce_eager"),
    "inference.min_healthy": Refused("2", "there are 1 servers"),
    "inference.max_restarts": InPart(lambda config: config.engine, "1"),
    "deployment.num_gpus": InPart(lambda config: config.gpus, "4"),
    "deployment.num_train_gpus": InPart(lambda config: config.gpus.train, "2"),
    "deployment.num_infer_gpus": InPart(lambda config: config.gpus.infer, "2"),
    "deployment.colocate": InPart(at_once, "true"),
    "deployment.check_memory": InPart(refused_for_memory, "false"),
    "deployment.ray_address": InPart(
        lambda config: plan_training(config).missing, "127.0.0.2:1"
    ),  # where nothing listens
    "deployment.threads": InRuns(lambda seen: seen.threads),
    "deployment.engine_process": InPart(first_process, "false", ASYNC),
}


@pytest.fixture(scope="module", autouse=True)
def importable() -> Any:
    """Functions here that configs name."""
    module = ModuleType("every_key")
    module.advantage_of_our_own = advantage_of_our_own  # type: ignore[attr-defined]
    module.loss_of_our_own, module.backwards = loss_of_our_own, backwards  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "every_key", module)
        yield


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return runs.run_both(tmp_path_factory.mktemp("runs"))


@cache
def _folder() -> Path:
    return new_folder()


def load(options: tuple[str, ...]) -> RunConfig:
    path = _folder() / "run.toml"
    path.write_text(MINIMAL.format(model=_learn_model()))
    made_here: dict[str, Callable[[], Path]] = {"EXPERTS": experts, "ADAPTER": adapter}
    given = [str(made_here[option]()) if option in made_here else option for option in options]
    return load_run_config(path, ["--runs_directory", str(_folder() / "runs"), *given])


def option(key: str, value: str, below: str = "") -> tuple[str, ...]:
    """As on the command line; of a list of tables, the first."""
    for section in ("eval.env.", "env."):
        if key.startswith(section):
            return (f"--{section}0.{key.removeprefix(section)}{below}", value)
    return (f"--{key}{below}", value)


def leaves() -> list[str]:
    keys = all_keys(RunConfig)
    return [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]


def test_every_key_has_an_entry_here() -> None:
    assert sorted(KEYS) == sorted(leaves())


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_something_that_can_be_seen_or_is_refused(key: str, request: pytest.FixtureRequest) -> None:
    match KEYS[key]:
        case InRuns(read):
            plain, changed = request.getfixturevalue("both")
            assert read(plain) != read(changed)
        case InPart(read, value, beside, below):
            assert read(load(beside)) != read(load((*beside, *option(key, value, below))))
        case Refused(value, says):
            with pytest.raises(ConfigError, match=says):
                load(option(key, value))


@pytest.mark.parametrize("key", DESIGNED.split())
def test_every_key_of_the_plan_is_there_or_refused_by_name(key: str) -> None:
    refused_or_other_keys = (*REASONS, "extra_body")
    assert key in all_keys(RunConfig) or key.removeprefix("sampling.") in refused_or_other_keys


@pytest.mark.parametrize("key", ["sampling.seed", "sampling.n", "sampling.logit_bias"])
def test_a_key_that_a_run_has_no_use_for_is_refused_with_the_reason(key: str) -> None:
    with pytest.raises(ConfigError, match="is not a setting of a run"):
        load((f"--{key}", "2"))


def test_a_run_takes_a_batch_in_parts_unless_its_advantages_are_made_of_all_of_it() -> None:
    assert source(load(ASYNC)).buffer.lead.parts > 1
    for key, value in (("advantage", "reinforce_pp"), ("reward_norm", "batch"), ("reward_norm", "running")):
        assert source(load((*ASYNC, f"--algorithm.{key}", value))).buffer.lead.parts == 1


def test_the_reference_has_a_thread_of_its_own_beside_a_learner_that_has_one_thread_and_computes_while_others_sample():
    beside = (*ASYNC, *KL, "--deployment.engine_process", "false")
    assert made(load((*beside, "--deployment.threads", "2")), "make_learner")["reference_thread"]
    assert not made(load((*beside, "--deployment.threads", "4")), "make_learner")["reference_thread"]
    assert not made(load((*KL, "--deployment.threads", "1")), "make_learner")["reference_thread"]
