"""Every key of a config of fine-tuning reaches what it is about, or is refused.

`KEYS` has an entry for each leaf of `SftConfig`; a key without one fails. Sections that reinforcement learning has too
are shown here to reach the part that they configure; that the part does what they say is shown in `test_every_key.py`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scripts.tiny_model.tokenizer import build_tokenizer

import whet.rl.fit
import whet.rl.loop.training_loop
import whet.rl.sft.data
import whet.rl.sft.run as module
import whet.rl.supervision.lifecycle
from whet.config import all_keys
from whet.errors import ConfigError, DatasetError, LearnerLostError, TrainingError
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.inference.weights.model_weights import read_checkpoint
from whet.rl import plan
from whet.rl.learner.protocol import LossOutput, OptimOutput
from whet.rl.loop.training_loop import HeldOutEvaluation
from whet.rl.monitors.protocol import EvalReport, Monitor
from whet.rl.sft.config import SftConfig, load_sft_config
from whet.rl.sft.data import SftData, load_data
from whet.rl.sft.run import SftLoop
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.supervision import backends
from whet.rl.supervision.ending import Budget, reason_of_losses, reason_to_stop
from whet.rl.supervision.lifecycle import TrainingRun
from whet.rl.supervision.watchdog_thread import Watchdog
from whet.rollouts.totals import EvalScore

EVALUATING = ("--eval.env", '[{ id = "reverse-text" }]')
SCHEDULED = (*EVALUATING, "--sampling.temp_scheduler.start", "1", "--sampling.temp_scheduler.end", "0.5")
WATCHED = ("--validation.fraction", "0.3", "--validation.interval", "1")
BY_REWARD = (*EVALUATING, "--eval.interval", "1", "--early_stop.metric", "reward")
BY_LOSS = (*WATCHED, "--early_stop.patience", "3")
ADAPTER = ("--lora.rank", "4")
RANKS = ("--learner.ranks", "2")
SCORED = ("--data.path", "SCORED", "--data.min_reward", "0.5")
TEXT = ("--data.path", "TEXT")


@dataclass(frozen=True)
class Differs:
    """`read` of a config differs with `--key value`; `beside` is set in both."""

    read: Callable[[SftConfig], Any]
    value: str
    beside: tuple[str, ...] = ()
    below: str = ""  # of a table: where in it the value is


@dataclass(frozen=True)
class Refused:
    value: str
    says: str
    beside: tuple[str, ...] = ()


class Reached(Exception):
    """As far as a run is followed here."""


@contextmanager
def replaced(target: Any, **parts: Any) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, part in parts.items():
            patch.setattr(target, name, part)
        yield


def handed(part: str) -> Callable[[SftConfig], Any]:
    """What a run hands to the part of this name, in whichever of its first files that is called."""
    files = (module, plan, backends, whet.rl.supervision.lifecycle)

    def read(config: SftConfig) -> Any:
        seen: list[Any] = []

        def note(*given: Any, **named: Any) -> Any:
            named.pop("publish_directory", None)
            seen.append((given, named))
            raise Reached

        made = SimpleNamespace(close=lambda: None, engine=None, version=0)
        parts = ("load_policy", "make_learner", "check_starting_point")
        stubs: dict[str, Any] = {**dict.fromkeys(parts, lambda *_, **__: made), part: note}
        with ExitStack() as stack:
            for file in files:
                there = {name: stub for name, stub in stubs.items() if hasattr(file, name)}
                stack.enter_context(replaced(file, **there))
            stack.enter_context(pytest.raises(Reached))
            module.run_sft(config, json_output=True)
        ((given, named),) = seen
        if part == "trackers":  # which are handed everything, and go by two sections
            return given[0].wandb, given[0].trackio
        # The run's directory and the model's files come first, and are not what is asked of these two.
        return repr(given[1:] if part in ("Records", "load_policy") else given), repr(named)

    return read


def preferring(config: SftConfig) -> Any:
    """The weight with which a step prefers answers."""
    seen: list[Any] = []

    def note(*given: Any) -> Any:
        seen.append(given)
        raise Reached

    loop: Any = SimpleNamespace(config=config, learner=None)
    with replaced(module, prefer=note), pytest.raises(Reached):
        SftLoop._learn(loop, [])
    return seen[0][2]


def refused_for_memory(config: SftConfig) -> bool:
    """Whether it is, on a machine without memory."""
    with replaced(whet.rl.fit, memory_available=lambda: 0):
        try:
            plan.plan_training(config).with_data(data(config)).check_memory()
        except ConfigError:
            return True
    return False


@cache
def renderer() -> ChatRenderer:
    return ChatRenderer(build_tokenizer())


def data(config: SftConfig) -> SftData:
    return load_data(config, renderer(), context=1024)


def trained(config: SftConfig) -> Any:
    """The tokens of every row, and which of them carry loss; or why there are none."""
    try:
        return [[(s.ids.tolist(), s.trained.tolist()) for s in example.sequences] for example in data(config).train]
    except DatasetError as error:
        return str(error)


def thinking(config: SftConfig) -> Any:
    """What the chat format is asked for; the tiny model's has no switch."""
    asked: list[Any] = []

    def note(*given: Any, **named: Any) -> Any:
        asked.append(named["enable_thinking"])
        raise DatasetError("seen")

    with replaced(whet.rl.sft.data, conversation_tokens=note), pytest.raises(DatasetError):
        data(config)
    return asked


def held_out(config: SftConfig) -> list[int]:
    return [example.number for example in data(config).validation]


def batches(config: SftConfig) -> list[Any]:
    taken = data(config).batches(config)
    return [taken.next() for _ in range(config.max_steps or taken.left())]


@dataclass
class Learner:
    """Learns nothing, and notes what it is asked."""

    version: int = 0
    asked: Any = None

    def forward_backward(self, batch: Any, loss: Any) -> LossOutput:
        return LossOutput(loss=1.0, tokens=1, sums={"entropy": 0.0})

    def optim_step(self, params: Any) -> OptimOutput:
        self.version, self.asked = self.version + 1, params
        return OptimOutput(grad_norm=0.0, learning_rate=params.learning_rate, version=self.version)

    def metrics(self) -> dict[str, float]:
        return {}

    def token_logprobs(self, batch: Any) -> Any:
        return np.zeros(batch.trained_tokens)


@dataclass
class Followed:
    """A loop over five steps: what it asked for, in order."""

    done: list[tuple[str, int]]
    learner: Learner


def followed(config: SftConfig) -> Followed:
    found, learner = Followed([], Learner()), Learner()
    found.learner = learner

    async def evaluate(moment: str, step: int) -> EvalReport:
        found.done.append((moment, step))
        return EvalReport("during", step, step, [])

    records = SimpleNamespace(
        measured=lambda metrics: found.done.append(("validated", 0)),
        trained=lambda step, _, metrics: found.done.append(
            ("validated" if "validation/loss" in metrics else "trained", step)
        ),
        evaluation=lambda report: report,
        evaluated=lambda step: False,
        save=lambda step, *_: found.done.append(("saved", step)),
    )
    silent = SimpleNamespace(**dict.fromkeys(("phase", "step", "note", "evaluation"), lambda *_: None))
    parts: Any = {"learner": learner, "records": records, "monitor": silent}
    held = data(config)
    endless = replace(held.batches(config), epochs=None)
    loop = SftLoop(
        config=config, data=held, batches=endless, last_step=5, evaluate=evaluate if config.eval else None, **parts
    )
    asyncio.run(loop.run(1))
    return found


def schedule(config: SftConfig) -> Any:
    return followed(config).done


def evaluated(config: SftConfig) -> Any:
    """What an evaluation asks for: environments, sampling, how many of what."""
    asked: list[Any] = []

    async def note(env: Any, client: Any, model: str, **named: Any) -> Any:
        named.pop("on_progress")
        asked.append(named)

    with replaced(whet.rl.loop.training_loop, evaluate_environment=note):
        labels = [(env.label, object()) for env in (config.eval.env if config.eval else ())]
        monitor: Any = None
        client: Any = None
        asyncio.run(HeldOutEvaluation(config, labels, client, monitor)("before", 0, 0))
    return asked


def loaded(config: SftConfig) -> Any:
    """Which environments a run loads, with what."""
    asked: list[Any] = []
    with replaced(plan, load_environment=lambda *given, **named: asked.append((given, named))):
        handed("make_learner")(config)
    return asked


def stopped(config: SftConfig) -> Any:
    """After which of some losses, or held-out scores, the run ends."""
    assert config.early_stop is not None
    if not config.early_stop.watches_evaluations:
        losses = [(step, loss) for step, loss in enumerate((2.0, 1.0, 0.99, 1.5, 1.2, 1.3))]
        return [reason_of_losses(config.early_stop, losses[: end + 1]) for end in range(len(losses))]
    reports = [
        EvalReport("during", step, step, [EvalScore(name, "greedy", reward * share, {"exact": step}, 4) for name, share
                                          in (("reverse-text", 1.0), ("b", 0.1))])
        for step, reward in enumerate((0.2, 0.5, 0.4, 0.4, 0.3))
    ]  # fmt: skip
    return [reason_to_stop(config.early_stop, reports[: end + 1]) for end in range(len(reports))]


def restarts(config: SftConfig) -> int:
    """How often a learner that is lost again and again is started again."""
    parts = {"watchdog": Watchdog(), "monitor": Monitor(), "directory": RunDirectory(Path("nowhere"))}
    run: Any = SimpleNamespace(config=config, **parts)
    for number in range(1, 100):
        try:
            TrainingRun._check_restart(run, LearnerLostError("it is gone"), number, stopped=False)
        except TrainingError:
            return number - 1
    raise AssertionError("there is no end to it")


def ends(config: SftConfig) -> Any:
    """Why a run that has taken some time and tokens ends, if it does."""
    return Budget(config.budget, counted="trained", time=100.0, tokens=1000).spent(1.0)


def last_step(config: SftConfig) -> int:
    """Of a run that is made whole, before its first step."""
    seen: list[int] = []

    def note(loop: SftLoop, first_step: int) -> Any:
        seen.append(loop.last_step)
        raise Reached

    with tempfile.TemporaryDirectory() as folder, replaced(SftLoop, run=note), pytest.raises(Reached):
        module.run_sft(config.model_copy(update={"runs_directory": Path(folder)}), json_output=True)
    return seen[0]


def exported(config: SftConfig) -> Any:
    """The dtype of the weights that a run of one step leaves."""
    with tempfile.TemporaryDirectory() as folder:
        changes = {"max_steps": 1, "num_epochs": None, "batch_size": 1, "runs_directory": Path(folder)}
        outcome = module.run_sft(config.model_copy(update=changes), json_output=True)
        assert outcome.weights is not None, outcome
        return read_checkpoint(outcome.weights)["model.norm.weight"].dtype


def learner_options(value: str, *beside: str, below: str = "") -> Differs:
    return Differs(handed("make_learner"), value, beside, below)


def evaluation(value: str, *beside: str) -> Differs:
    return Differs(evaluated, value, (*EVALUATING, *beside))


def tracker(value: str, section: str) -> Differs:
    return Differs(handed("trackers"), value, (f"--{section}.name", "n", f"--{section}.project", "p"))


KEYS: dict[str, Differs | Refused] = {
    "name": Differs(handed("RunDirectory"), "other"),
    "runs_directory": Differs(handed("RunDirectory"), "elsewhere"),
    "model": Differs(handed("check_starting_point"), "elsewhere"),
    "env_file": Differs(handed("load_env_files"), '["secrets.env"]'),
    "num_epochs": Differs(lambda config: len(batches(config)), "3"),
    "max_steps": Differs(lambda config: len(batches(config)), "9"),
    "batch_size": Differs(batches, "3"),
    "batch_tokens": Differs(batches, "80"),
    "seed": Differs(batches, "1"),
    "learning_rate": Differs(lambda config: followed(config).learner.asked.learning_rate, "0.5"),
    "max_concurrent": evaluation("2"),
    "data.path": Differs(trained, "TEXT"),
    "data.dataset": Refused("owner/name", "give either path"),
    "data.split": Refused("test", "'test' would have no effect"),
    "data.min_reward": Differs(trained, "0.9", SCORED),
    "dpo.beta": Differs(preferring, "0.5", ("--dpo.beta", "0.2")),
    "dpo.reference": Differs(handed("check_starting_point"), "whet/tiny", ("--dpo.beta", "0.2")),
    "data.best_per_example": Differs(trained, "1", SCORED),
    "data.num_examples": Differs(trained, "3"),
    "data.train_on": Differs(trained, "last"),
    "data.text": Differs(trained, "true", TEXT),
    "data.enable_thinking": Differs(thinking, "true"),
    "data.max_length": Differs(trained, "40"),
    "data.too_long": Differs(trained, "cut", ("--data.max_length", "40")),
    "validation.path": Differs(held_out, "SCORED", ("--validation.path", "MORE")),
    "validation.fraction": Differs(held_out, "0.6", ("--validation.fraction", "0.2")),
    "validation.interval": Differs(schedule, "2", ("--validation.fraction", "0.3")),
    "lora.rank": learner_options("8", *ADAPTER),
    "lora.alpha": learner_options("8", *ADAPTER),
    "lora.base": learner_options("packed", *ADAPTER),
    "lora.use_rslora": learner_options("true", *ADAPTER),
    "lora.dropout": learner_options("0.5", *ADAPTER),
    "lora.target_modules": learner_options('["q_proj"]', *ADAPTER),
    "lora.path": learner_options("elsewhere", *ADAPTER),
    "lora.merge": learner_options("true", *ADAPTER),
    "optimizer.type": learner_options("sgd"),
    "optimizer.betas": learner_options("[0.5, 0.5]"),
    "optimizer.weight_decay": learner_options("0.5"),
    "optimizer.momentum": learner_options("0.5", "--optimizer.type", "sgd"),
    "optimizer.muon_learning_rate": learner_options("0.5", "--optimizer.type", "muon"),
    "optimizer.max_grad_norm": Differs(lambda config: followed(config).learner.asked.max_grad_norm, "0.5"),
    "optimizer.schedule": learner_options("linear"),
    "optimizer.warmup_steps": learner_options("1"),
    "optimizer.decay_start": learner_options("0.5", "--optimizer.schedule", "cosine"),
    "optimizer.min_lr_ratio": learner_options("0.5", "--optimizer.schedule", "cosine"),
    "learner.ranks": Differs(lambda config: len(plan.plan_training(config).placement.parts), "2"),
    "learner.shard_ranks": Differs(
        lambda config: [part.holds for part in plan.plan_training(config).placement.parts],
        "2",
        ("--learner.ranks", "4"),
    ),
    "learner.rank_timeout_seconds": Differs(lambda config: handed("local_ranks")(config)[1], "30", RANKS),
    "learner.max_restarts": Differs(restarts, "1", RANKS),
    "learner.micro_batch_tokens": learner_options("99"),
    "learner.activation_checkpointing": learner_options("true"),
    "learner.compile": learner_options("true"),
    "learner.context_parallel_size": Refused("2", "a sequence is computed on one device"),
    "learner.device": learner_options("cpu"),
    "learner.dtype": learner_options("bfloat16"),
    "learner.weights_dtype": learner_options("bfloat16", "--learner.dtype", "bfloat16"),
    "learner.base_dtype": learner_options("bfloat16", "--learner.dtype", "bfloat16", "--lora.rank", "4"),
    "learner.keep_token_details": Refused("false", "no rollout is trained on"),
    "learner.peak_tflops": learner_options("2.0"),
    "eval.interval": Differs(schedule, "2", EVALUATING),
    "eval.before": Differs(schedule, "false", EVALUATING),
    "eval.after": Differs(schedule, "false", EVALUATING),
    "eval.num_examples": evaluation("3"),
    "eval.rollouts_per_example": evaluation("3"),
    "eval.greedy": evaluation("false"),
    "eval.max_retries": evaluation("1"),
    "eval.timeout": evaluation("5"),
    "eval.sampling.max_tokens": evaluation("7"),
    "eval.sampling.temperature": evaluation("0.5"),
    "eval.sampling.top_p": evaluation("0.5"),
    "eval.sampling.top_k": evaluation("5"),
    "eval.sampling.min_p": evaluation("0.5"),
    "eval.sampling.stop": evaluation('["x"]'),
    "eval.sampling.enable_thinking": evaluation("true"),
    "eval.env.id": Differs(loaded, "calculator", EVALUATING),
    "eval.env.name": evaluation("other"),
    "eval.env.weight": Refused("2", "no effect", EVALUATING),
    "eval.env.loss_weight": Refused("2", "no effect", EVALUATING),
    "eval.env.max_concurrent": Refused("2", "no effect", EVALUATING),
    "eval.env.algorithm": Refused("opd", "no effect", EVALUATING),
    "eval.env.hint_prompt": Refused("So: {hint}", "no effect", EVALUATING),
    "eval.env.args": Differs(loaded, "5", EVALUATING, ".n"),
    "eval.env.taskset": Differs(loaded, "x", EVALUATING, ".split"),
    "eval.env.harness": Differs(loaded, "x", EVALUATING, ".id"),
    "sampling.max_tokens": evaluation("7"),
    "sampling.temperature": evaluation("0.5"),
    "sampling.top_p": evaluation("0.5"),
    "sampling.top_k": evaluation("5"),
    "sampling.min_p": evaluation("0.5"),
    "sampling.stop": evaluation('["x"]'),
    "sampling.enable_thinking": evaluation("true"),
    "sampling.temp_scheduler.type": Refused("cosine", "no rollout is trained on", SCHEDULED),
    "sampling.temp_scheduler.start": Refused("1", "no rollout is trained on", SCHEDULED),
    "sampling.temp_scheduler.end": Refused("0.5", "no rollout is trained on", SCHEDULED),
    "sampling.temp_scheduler.steps": Refused("2", "no rollout is trained on", SCHEDULED),
    "checkpointing.save_every_n_steps": Differs(schedule, "2"),
    "checkpointing.keep_n_checkpoints": Differs(handed("Records"), "2"),
    "checkpointing.export_dtype": Differs(exported, "bfloat16"),
    "budget.max_time": Differs(ends, "60"),
    "budget.max_tokens": Differs(ends, "500"),
    "budget.max_rows": Differs(last_step, "3", ("--batch_size", "2")),
    "budget.max_rollouts": Refused("2", "no rollout is trained on"),
    "budget.max_cost": Refused("2", "no rollout is trained on"),
    "early_stop.metric": Differs(stopped, "exact", BY_REWARD),
    "early_stop.environment": Differs(stopped, "reverse-text", BY_REWARD),
    "early_stop.patience": Differs(stopped, "2", BY_LOSS),
    "early_stop.min_delta": Differs(stopped, "0.5", BY_LOSS),
    "early_stop.collapse": Differs(stopped, "0.4", BY_LOSS),
    "watchdog.report_seconds": Differs(handed("Watchdog"), "30"),
    "watchdog.act_seconds": Differs(handed("Watchdog"), "300"),
    "watchdog.act_factor": Differs(handed("Watchdog"), "3"),
    "watchdog.first_seconds": Differs(handed("Watchdog"), "900"),
    "inference.engine": Refused("vllm", "use the embedded engine, not vLLM", EVALUATING),
    "inference.base_url": Refused("http://h:8000", "use the embedded engine, not vLLM", EVALUATING),
    "inference.servers": Refused("2", "use the embedded engine, not vLLM", EVALUATING),
    "inference.python": Refused("python3", "use the embedded engine, not vLLM", EVALUATING),
    "inference.tensor_parallel_size": Refused("2", "use the embedded engine, not vLLM", EVALUATING),
    "inference.pipeline_parallel_size": Refused("2", "use the embedded engine, not vLLM", EVALUATING),
    "inference.gpu_memory_utilization": Refused("0.5", "use the embedded engine, not vLLM", EVALUATING),
    "inference.max_model_len": Refused("64", "use the embedded engine, not vLLM", EVALUATING),
    "inference.server_args": Refused("{ enforce_eager = true }", "use the embedded engine, not vLLM", EVALUATING),
    "inference.min_healthy": Refused("2", "use the embedded engine, not vLLM", EVALUATING),
    "inference.max_restarts": Refused("1", "use the embedded engine, not vLLM", EVALUATING),
    "inference.device": Differs(handed("load_policy"), "cpu", EVALUATING),
    "inference.dtype": Differs(handed("load_policy"), "bfloat16", EVALUATING),
    "wandb.project": tracker("mine", "wandb"),
    "wandb.name": tracker("mine", "wandb"),
    "wandb.entity": tracker("mine", "wandb"),
    "wandb.group": tracker("mine", "wandb"),
    "wandb.tags": tracker('["mine"]', "wandb"),
    "wandb.offline": tracker("true", "wandb"),
    "wandb.samples_every": Refused("1", "no rollout is trained on"),
    "trackio.project": tracker("mine", "trackio"),
    "trackio.name": tracker("mine", "trackio"),
    "trackio.group": tracker("mine", "trackio"),
    "deployment.threads": learner_options("3"),
    "deployment.engine_process": Refused("true", "no rollout is trained on"),
    "deployment.num_gpus": Differs(lambda config: config.ranks, "2"),
    "deployment.num_train_gpus": Differs(lambda config: config.ranks, "2"),
    "deployment.num_infer_gpus": Refused("2", "the engine of evaluations computes on one GPU"),
    "deployment.check_memory": Differs(refused_for_memory, "false"),
    "deployment.colocate": Refused("true", "fine-tuning samples nothing to learn from"),
    "deployment.ray_address": Refused("auto", "fine-tuning computes on this machine"),
}


def chat(number: int) -> dict[str, Any]:
    """Two answers; later rows are longer."""
    asked = f"What is {number} plus 1? " + "Please. " * (number // 4)
    said = [("user", asked), ("assistant", str(number + 1)), ("user", "Sure?"), ("assistant", "Yes.")]
    return {"messages": [{"role": role, "content": content} for role, content in said]}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By the names that stand for them in `KEYS`."""
    rows = {
        "ROWS": [chat(number) for number in range(20)],
        "SCORED": [{**chat(number + 50), "reward": number / 7, "example_id": number // 2} for number in range(7)],
        "MORE": [chat(number + 80) for number in range(5)],
        "TEXT": [{"prompt": f"{number} plus 1 is", "completion": f" {number + 1}"} for number in range(9)],
    }
    folder = tmp_path_factory.mktemp("rows")
    for name, lines in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {name: str(folder / f"{name}.jsonl") for name in rows}


@pytest.fixture
def load(files: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., SftConfig]:
    """A config with these options, in a folder of its own that is the current one."""

    def load(*options: str) -> SftConfig:
        monkeypatch.chdir(tempfile.mkdtemp(dir=tmp_path))
        Path("run.toml").write_text(f'batch_size = 4\n[data]\npath = "{files["ROWS"]}"\n[deployment]\nthreads = 1\n')
        return load_sft_config(Path("run.toml"), [files.get(option, option) for option in options])

    return load


def option(key: str, value: str, below: str = "") -> tuple[str, ...]:
    """As on the command line; of a list of tables, the first."""
    key = key.replace("eval.env.", "eval.env.0.", 1)
    return (f"--{key}{below}", value)


def test_every_key_has_an_entry_here() -> None:
    keys = all_keys(SftConfig)
    assert sorted(KEYS) == sorted(key for key in keys if not any(other.startswith(f"{key}.") for other in keys))


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_something_that_can_be_seen_or_is_refused(key: str, load: Callable[..., SftConfig]) -> None:
    match KEYS[key]:
        case Differs(read, value, beside, below):
            plain = read(load(*beside))
            assert plain == read(load(*beside))
            assert plain != read(load(*beside, *option(key, value, below)))
        case Refused(value, says, beside):
            with pytest.raises((ConfigError, DatasetError), match=says):
                data(load(*beside, *option(key, value)))


def test_a_dataset_of_the_hub_and_its_split_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def note(*given: Any) -> Any:
        asked.append(given)
        raise DatasetError("offline")

    monkeypatch.setattr(whet.rl.sft.data, "read_dataset", note)
    for changes in ({}, {"split": "test"}):
        config = SftConfig.model_validate({"name": "r", "data": {"dataset": "owner/name", **changes}})
        with pytest.raises(DatasetError, match="offline"):
            data(config)
    assert asked == [("owner/name", "train"), ("owner/name", "test")]
