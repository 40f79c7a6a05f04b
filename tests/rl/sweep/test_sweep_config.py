"""What a sweep may be asked, in a file and on the command line, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError, RunError
from whet.rl.sweep.config import Range, load_sweep, overrides, trial_config
from whet.rl.sweep.state import SweepDirectory
from whet.rl.sweep.sweep import Sweep

RUN = """
model = "whet/tiny"
max_steps = 9
batch_size = 8
rollouts_per_example = 4
[[env]]
id = "reverse-text"
"""


SFT = """
max_steps = 9
batch_size = 8
[data]
path = "rows.jsonl"
[validation]
fraction = 0.25
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_values_of_the_command_line(write: Any) -> None:
    base = write("run.toml", RUN)
    vary = ["learning_rate=1e-4,1e-3", "lora.rank=[4, 8]", "seed=3", "optimizer.type=adamw,muon"]
    vary.append("algorithm.kl_coef={low = 1e-4, high = 1e-1, log = true}")
    sweep, found = load_sweep(base, {"method": "random", "trials": 4}, vary)
    assert found == base
    assert sweep.name == "run-sweep"
    assert sweep.vary == {
        "learning_rate": (1e-4, 1e-3),
        "lora.rank": (4, 8),
        "seed": (3,),
        "optimizer.type": ("adamw", "muon"),
        "algorithm.kl_coef": Range(low=1e-4, high=1e-1, log=True),
    }
    assert sweep.varied == [key for key in sweep.vary if key != "seed"]


def test_a_sweep_file_and_what_the_command_line_puts_over_it(write: Any, tmp_path: Path) -> None:
    write("run.toml", RUN)
    file = write(
        "rates.toml",
        'config = "run.toml"\nmethod = "asha"\nrungs = 2\n[vary]\nlearning_rate = [1e-4, 1e-3]\nlora.rank = [4, 8]\n'
        "env.0.args.max_length = [3, 4]\n",
    )
    sweep, base = load_sweep(file, {"parallel": 2}, ["lora.rank=16"])
    assert (base, sweep.name, sweep.parallel) == (tmp_path / "run.toml", "rates-sweep", 2)
    assert sweep.vary["env.0.args.max_length"] == (3, 4)
    assert sweep.vary["lora.rank"] == (16,)
    assert sweep.targets(9) == [3, 9]
    assert sweep.most_trials == 4


def test_values_reach_the_config_of_the_trial_as_they_are(write: Any) -> None:
    base = write("run.toml", RUN)
    values = {"learning_rate": 3e-4, "model": "12", "env.0.args.max_length": 3, "eval.greedy": False}
    run = trial_config(base, {**values, "sampling.stop": ["a", 'b"']})
    assert (run.learning_rate, run.model, run.env[0].args["max_length"], run.eval.greedy) == (3e-4, "12", 3, False)
    assert run.sampling.stop == ("a", 'b"')
    assert overrides({"model": "12"}) == ['--model="12"']


REFUSED = {
    "": "there is nothing to vary",
    "learning_rate": "expected KEY=VALUE,VALUE",
    "learning_rate=1e-4,1e-4": "has a value twice",
    "learning_rate={low=1, high=1}": "low = 1 is not below high = 1",
    "learning_rate={low=1e-4, high=1e-3}": "is a range, which a grid cannot have",
    "name=a,b": "'name' is set by the sweep",
    "budget.max_rollouts=8,16": "'budget.max_rollouts' is set by the sweep",
    "lerning_rate=1,2": "Did you mean 'learning_rate'",
    "eval.after=false": "leave eval.after at true",
    "learning_rate=1e-4,-1.0": "'learning_rate'",
}


@pytest.mark.parametrize("vary", REFUSED)
def test_mistakes_are_found_before_anything_is_trained(write: Any, vary: str) -> None:
    base = write("run.toml", RUN)
    with pytest.raises(ConfigError) as caught:
        Sweep(*load_sweep(base, {}, [vary] if vary else []), say=print)
    assert REFUSED[vary] in str(caught.value)


FINE_TUNING = {
    ("learning_rate=1e-4,1e-3", "reward"): r"needs an \[\[eval.env\]\] that is evaluated after training",
    ("max_steps=0", "validation/loss"): "'max_steps'",
    ("batch_tokens=100", "validation/loss"): "set batch_size without batch_tokens",
    ("validation.interval=1,2", "exact"): r"needs an \[\[eval.env\]\]",
    ("budget.max_rows=8,16", "validation/loss"): "'budget.max_rows' is set by the sweep",
}


@pytest.mark.parametrize(("vary", "metric"), FINE_TUNING)
def test_mistakes_in_a_sweep_of_fine_tuning(write: Any, vary: str, metric: str) -> None:
    base = write("sft.toml", SFT)
    with pytest.raises(ConfigError, match=FINE_TUNING[vary, metric]):
        Sweep(*load_sweep(base, {"metric": metric}, [vary]), say=print)


def test_a_sweep_of_fine_tuning_needs_its_steps_and_rows_that_are_never_trained(write: Any) -> None:
    given = {"metric": "validation/loss"}, ["learning_rate=1e-4,1e-3"]
    epochs = write("epochs.toml", SFT.replace("max_steps", "num_epochs"))
    with pytest.raises(ConfigError, match="set max_steps in place of num_epochs"):
        Sweep(*load_sweep(epochs, *given), say=print)
    alone = write("alone.toml", SFT.partition("[validation]")[0])
    with pytest.raises(ConfigError, match=r"needs \[validation\]"):
        Sweep(*load_sweep(alone, *given), say=print)
    learns = write("run.toml", RUN)
    with pytest.raises(ConfigError, match="is of whet train sft"):
        Sweep(*load_sweep(learns, *given), say=print)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"method": "tpe"}, "trials is missing"),
        ({"rungs": 4}, "rungs would have no effect"),
        ({"method": "asha", "rungs": 4}, "max_steps = 9 is too few for 4 rungs"),
    ],
)
def test_options_that_do_not_fit_together(write: Any, given: dict[str, Any], why: str) -> None:
    base = write("run.toml", RUN)
    with pytest.raises(ConfigError, match=why):
        Sweep(*load_sweep(base, given, ["learning_rate=1e-4,1e-3"]), say=print)


def test_a_sweep_continues_only_as_what_it_was(tmp_path: Path) -> None:
    first = SweepDirectory(tmp_path / "s")
    first.open({"vary": [1, 2], "method": "grid"}, resume=False)
    first.close()
    with pytest.raises(RunError, match="already exists"):
        SweepDirectory(tmp_path / "s").open({}, resume=False)
    with pytest.raises(RunError, match="method: was 'grid', is 'asha'"):
        SweepDirectory(tmp_path / "s").open({"vary": [1, 2], "method": "asha"}, resume=True)
    with pytest.raises(RunError, match="is not a sweep"):
        SweepDirectory(tmp_path / "other").open({}, resume=True)
