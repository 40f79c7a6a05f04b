"""What a command line and its files come to: who goes over whom, and everything that is wrong with the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError, EnvironmentLoadError, RunError
from whet.evals.config import EvalConfig
from whet.evals.planning.plan import plan_evals


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two environments, `one` (whose author wants 7 tasks and 2 rollouts) and `two`."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        package = tmp_path / "environments" / name
        package.mkdir(parents=True)
        (package / f"{name}.py").write_text("raise RuntimeError('imported')\n")
        (package / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    with (tmp_path / "environments/one/pyproject.toml").open("a") as file:
        file.write("[tool.whet.eval]\nnum_examples = 7\nrollouts_per_example = 2\n")
    return tmp_path


def write(folder: Path, text: str) -> str:
    file = folder / "evals.toml"
    file.write_text(text)
    return str(file)


def test_the_command_line_goes_over_the_entry_the_file_and_the_environment_s_defaults(folder: Path) -> None:
    file = write(
        folder, 'max_concurrent = 9\nmax_tokens = 5\n[[eval]]\nid = "one"\nmax_tokens = 6\ntemperature = 1.0\n'
    )
    (config,) = plan_evals([file], {"temperature": 0.5})
    assert config == EvalConfig(
        environment="one",
        num_examples=7,
        rollouts_per_example=2,
        max_concurrent=9,
        max_tokens=6,
        temperature=0.5,
    )


def test_tables_complete_each_other_key_by_key(folder: Path) -> None:
    file = write(folder, '[[eval]]\nid = "two"\n[eval.args]\na = 1\nb = 2\n[eval.sampling]\ntop_p = 0.5\n')
    (config,) = plan_evals([file], {"env_args": {"b": 3}, "sampling_args": {"top_k": 4}})
    assert (config.env_args, config.sampling_args) == ({"a": 1, "b": 3}, {"top_p": 0.5, "top_k": 4})


def test_sampling_arguments_go_over_the_option_that_says_the_same_below(folder: Path) -> None:
    file = write(folder, 'temperature = 1.0\n[[eval]]\nid = "two"\n')
    (config,) = plan_evals([file], {"sampling_args": {"temperature": 0.0}})
    assert config.temperature == 0.0


def test_a_taskset_and_a_harness_become_the_config_of_load_environment(folder: Path) -> None:
    file = write(folder, '[[eval]]\nid = "two"\n[eval.taskset]\nlevel = 2\n[eval.harness]\nturns = 3\n')
    (config,) = plan_evals([file], {})
    assert config.env_args == {"config": {"taskset": {"level": 2}, "harness": {"turns": 3}}}


def test_environments_and_files_may_stand_side_by_side(folder: Path) -> None:
    file = write(folder, '[[ablation]]\nid = "two"\n[ablation.sweep]\ntemperature = [0.0, 1.0]\n')
    configs = plan_evals(["one", file, "environments/two"], {"num_examples": 3})
    assert [(config.environment, config.temperature, config.num_examples) for config in configs] == [
        ("one", None, 3),
        ("two", 0.0, 3),
        ("two", 1.0, 3),
        ("environments/two", None, 3),
    ]
    assert [config.varied for config in configs] == [{}, {"temperature": 0.0}, {"temperature": 1.0}, {}]


def test_a_short_name_of_a_file_beside_the_config_is_looked_up(folder: Path) -> None:
    (folder / "my.toml").write_text(
        '[[endpoint]]\nendpoint_id = "mini"\nmodel = "big"\nurl = "http://localhost:1/v1"\n'
    )
    (config,) = plan_evals([write(folder, 'endpoints = "my.toml"\nmodel = "mini"\n[[eval]]\nid = "one"\n')], {})
    assert (config.model, config.base_url) == ("big", "http://localhost:1/v1")


def test_every_environment_that_is_missing_is_named_with_how_to_install_it(folder: Path) -> None:
    file = write(folder, '[[eval]]\nid = "gone"\n')
    with pytest.raises(EnvironmentLoadError) as caught:
        plan_evals(["one", "away", file], {})
    first, second = str(caught.value).splitlines()
    assert first.startswith("environment 'away' is not installed")
    assert second.startswith(f"{file}: [[eval]] 1: environment 'gone' is not installed")
    assert "pip install gone" in second


@pytest.mark.parametrize("targets", [["one", "one"], ["evals.toml", "two"], ["evals.toml", "evals.toml"]])
def test_an_evaluation_that_is_asked_for_twice_is_refused(targets: list[str], folder: Path) -> None:
    write(folder, '[[eval]]\nid = "two"\n')
    with pytest.raises(ConfigError, match="is the same evaluation as"):
        plan_evals(targets, {})


def test_the_command_line_cannot_set_what_a_file_sweeps(folder: Path) -> None:
    file = write(folder, '[[ablation]]\nid = "two"\n[ablation.sweep]\ntemperature = [0.0, 1.0]\n')
    with pytest.raises(ConfigError, match="sweeps 'temperature', which the command line sets too"):
        plan_evals([file], {"temperature": 0.5})


@pytest.mark.parametrize("given", [{"temperature": 1.0, "sampling_args": {"temperature": 0.0}}])
def test_one_thing_in_two_options_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"command line: 'temperature' and sampling.temperature say the same"):
        plan_evals(["one"], given)


@pytest.mark.parametrize("url", ["https://api.openai.com/v1", "http://10.0.0.2/v1", "http://127.0.0.1/v1,http://h/v1"])
def test_offline_refuses_an_endpoint_elsewhere(url: str) -> None:
    with pytest.raises(ConfigError, match="is not on this machine"):
        plan_evals(["one"], {"offline": True, "base_url": url})


@pytest.mark.parametrize("url", ["http://localhost:1/v1", "http://127.3.0.1/v1", "http://[::1]:8000/v1"])
def test_offline_reaches_an_endpoint_here(url: str) -> None:
    assert plan_evals(["one"], {"offline": True, "base_url": url})[0].offline


# Resuming


def store(name: str, date: str, model: str = "whet/tiny", environment: str = "one", **config: Any) -> Path:
    directory = Path("outputs/evals") / f"{environment}--{model.replace('/', '--')}" / name
    directory.mkdir(parents=True)
    asked = EvalConfig(environment=environment, model=model, **config)
    metadata = {
        "date": date,
        "env_args": asked.env_args,
        "model": model,
        "sampling_args": asked.resolved_sampling({}),
        "config": asked.model_dump(mode="json"),
    }
    (directory / "metadata.json").write_text(json.dumps(metadata))
    return directory


def test_resume_without_a_path_takes_the_newest_of_the_environment_and_model_and_says_which() -> None:
    store("a", "2026-01-01T00:00:00")
    newest = store("b", "2026-01-03T00:00:00")
    store("c", "2026-01-02T00:00:00")
    store("d", "2026-01-04T00:00:00", model="other")
    notes: list[str] = []
    (config,) = plan_evals(["one"], {"resume": True}, note=notes.append)
    assert config.resume == newest
    assert notes == [f"resuming {newest}"]


def test_one_with_the_same_settings_goes_before_a_newer_one_with_others() -> None:
    mine = store("a", "2026-01-01T00:00:00", temperature=0.5)
    newest = store("b", "2026-01-02T00:00:00", temperature=0.9)
    assert plan_evals(["one"], {"resume": True, "temperature": 0.5})[0].resume == mine
    assert plan_evals(["one"], {"resume": True})[0].resume == newest


def test_with_nothing_to_resume_there_is_one_line() -> None:
    with pytest.raises(RunError, match=r"there is no evaluation of one with whet/tiny in outputs/evals") as caught:
        plan_evals(["one"], {"resume": True})
    assert "\n" not in str(caught.value)


def test_a_directory_can_be_named(folder: Path) -> None:
    assert plan_evals(["one"], {"resume": Path("x/y")})[0].resume == Path("x/y")
    assert plan_evals(["one"], {"resume": Path("x/y/results.jsonl")})[0].resume == Path("x/y")
    (config,) = plan_evals([write(folder, '[[eval]]\nid = "one"\nresume = "x"\n')], {})
    assert config.resume == folder / "x"


def test_what_is_resumed_is_saved() -> None:
    with pytest.raises(ConfigError, match="leave --no-save out"):
        plan_evals(["one"], {"resume": Path("x"), "save": False})


def test_one_directory_is_not_resumed_by_several_evaluations() -> None:
    with pytest.raises(ConfigError, match="give --resume without a path"):
        plan_evals(["one", "two"], {"resume": Path("x")})


def test_a_sweep_goes_on_with_those_that_began_and_begins_the_others(folder: Path) -> None:
    file = write(folder, '[[ablation]]\nid = "two"\n[ablation.sweep]\ntemperature = [0.0, 0.5]\nmax_tokens = [4, 8]\n')
    first = store("a", "2026-01-01T00:00:00", environment="two", temperature=0.0, max_tokens=4)
    second = store("b", "2026-01-02T00:00:00", environment="two", temperature=0.0, max_tokens=8)
    notes: list[str] = []
    configs = plan_evals([file], {"resume": True}, note=notes.append)
    assert [config.resume for config in configs] == [first, second, None, None]
    assert (
        notes[2]
        == "nothing to resume for two with whet/tiny (temperature=0.5 max_tokens=4): it starts from the beginning"
    )
