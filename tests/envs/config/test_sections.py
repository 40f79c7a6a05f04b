"""`[env.args]`, `[env.taskset]` and `[env.harness]`: what a loader is called with, in every config that has them."""

from pathlib import Path

import pytest

import whet
from whet.envs.config.sections import loader_arguments
from whet.errors import ConfigError, EnvironmentLoadError
from whet.rl.config import RunConfig, load_run_config

LOADER = """
import whet


class Words(whet.TasksetConfig):
    difficulty: int = 1


class Both(whet.EnvConfig):
    taskset: Words = Words()


class Taskset(whet.Taskset):
    config_type = Words

    def __init__(self, config):
        super().__init__(source=lambda: [{"question": "q"}] * self.config.difficulty, config=config)


def load_environment(config: ANNOTATION, extra: int = 0):
    return whet.Env(Taskset(config.taskset), whet.Harness(config=config.harness))
"""


@pytest.fixture
def package(tmp_path: Path):
    def write(name: str, annotation: str = "Both | None = Both()") -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(LOADER.replace("ANNOTATION", annotation))
        return str(path)

    return write


def test_sections_become_the_config_of_the_loader_beside_its_other_arguments() -> None:
    assert loader_arguments({"split": "test"}, {"a": 1}, {"b": 2}) == {
        "split": "test",
        "config": {"taskset": {"a": 1}, "harness": {"b": 2}},
    }
    assert loader_arguments({"config": {"harness": {"b": 2}}}, {"a": 1}) == {
        "config": {"harness": {"b": 2}, "taskset": {"a": 1}}
    }
    assert loader_arguments({"split": "test"}) == {"split": "test"}


@pytest.mark.parametrize(
    "args", [{"taskset": {}}, {"config": {"taskset": {}}}, {"config": 7}], ids=["argument", "config", "no table"]
)
def test_what_is_given_twice_is_an_error(args) -> None:
    with pytest.raises(ConfigError, match=r"\[eval.args\]"):
        loader_arguments(args, {"a": 1}, where="eval")


def test_a_training_config_has_the_sections_and_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "r"\n[[env]]\nid = "x"\nargs = { split = "test" }\n[env.taskset]\ndifficulty = 3\n'
        '[env.taskset.scoring.right]\nweight = 0.5\n[env.harness]\nmax_turns = 4\n[[eval.env]]\nid = "x"\n'
        "[eval.env.taskset]\ndifficulty = 9\n"
    )
    config = load_run_config(path, ["--env.0.taskset.difficulty", "5"])
    assert config.env[0].loader_args() == {
        "split": "test",
        "config": {"taskset": {"difficulty": 5, "scoring": {"right": {"weight": 0.5}}}, "harness": {"max_turns": 4}},
    }
    assert config.eval.env[0].loader_args() == {"config": {"taskset": {"difficulty": 9}}}
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert load_run_config(tmp_path / "again.toml") == config


def test_a_training_config_that_says_it_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "r"\n[[env]]\nid = "x"\nargs = { taskset = {} }\n[env.taskset]\ndifficulty = 3\n')
    with pytest.raises(ConfigError, match="say the same; leave one out"):
        load_run_config(path)
    path.write_text('name = "r"\n[[env]]\nid = "x"\n[env.tasket]\ndifficulty = 3\n')
    with pytest.raises(ConfigError, match=r"Did you mean 'env.0.taskset'\?"):
        load_run_config(path)


@pytest.mark.parametrize("annotation", ["Both | None = Both()", "Both = Both()", "whet.EnvConfig = whet.EnvConfig()"])
def test_a_loader_is_given_the_class_it_names(package, annotation: str) -> None:
    name = f"sections_{len(annotation)}"
    arguments = {"config": {"taskset": {"difficulty": 3}}, "extra": 7}
    env = whet.load_environment(package(name, annotation), **arguments)
    assert len(env.get_dataset()) == 3
    assert env.env_args == arguments


def test_a_misspelt_setting_stops_before_anything_is_loaded(package) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'difficulty'"):
        whet.load_environment(package("sections_misspelt"), config={"taskset": {"dificulty": 3}})


def test_sections_for_an_environment_without_a_config_say_so() -> None:
    run = RunConfig.model_validate({"name": "r", "env": [{"id": "reverse-text", "taskset": {"difficulty": 3}}]})
    with pytest.raises(EnvironmentLoadError, match=r"\[env.taskset\] and \[env.harness\] are for environments"):
        whet.load_environment(run.env[0].id, **run.env[0].loader_args())
