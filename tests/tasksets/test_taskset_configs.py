"""Configs of tasksets and harnesses: typed, strict, merged of code, defaults and files."""

import pytest

import whet
from whet.errors import ConfigError


class Words(whet.TasksetConfig):
    difficulty: int = 1
    split: str = "train"


class Play(whet.HarnessConfig):
    style: str = "plain"


class Both(whet.EnvConfig):
    taskset: Words = Words()
    harness: Play = Play()


def test_a_config_of_its_own_has_its_fields_and_those_of_every_taskset() -> None:
    config = Words({"difficulty": 3}, taskset_id="words")
    assert (config.difficulty, config.split, config.taskset_id) == (3, "train", "words")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Words(dificulty=2), "Did you mean 'difficulty'?"),
        (lambda: whet.HarnessConfig({"max_turn": 2}), "Did you mean 'max_turns'?"),
        (lambda: whet.EnvConfig({"tasket": {}}), "Did you mean 'taskset'?"),
        (lambda: Both({"taskset": {"difficult": 2}}), "Did you mean 'difficulty'?"),
        (lambda: Words(difficulty="hard"), "valid integer"),
        (lambda: Words(7), "int is no config"),
        (lambda: whet.EnvConfig(taskset=7), "should be a table or a config"),
        (lambda: whet.TasksetConfig(Words(difficulty=2)), "unknown key 'difficulty'"),
    ],
)
def test_a_mistake_is_one_clear_message(make, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert said in str(caught.value)


def test_a_config_does_not_change_once_it_is_made() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Words().difficulty = 2


def test_a_keyword_wins_over_what_it_is_made_of_and_none_says_nothing() -> None:
    given = Words(difficulty=2, split="test")
    assert Words(given, split="eval").split == "eval"
    assert Words(given, split=None).split == "test"


def test_a_typed_env_config_reads_tables_as_the_configs_it_names() -> None:
    config = Both({"taskset": {"difficulty": 4}})
    assert (config.taskset.difficulty, config.harness.style) == (4, "plain")


def test_sections_given_as_defaults_yield_key_by_key_to_what_is_configured() -> None:
    config = whet.EnvConfig({"taskset": {"difficulty": 4}}, taskset=Words(difficulty=2, split="test"))
    assert isinstance(config.taskset, Words)
    assert (config.taskset.difficulty, config.taskset.split) == (4, "test")


def test_a_taskset_reads_its_config_as_the_class_it_names() -> None:
    class Spelling(whet.Taskset):
        config_type = Words

    assert Spelling(source=[], config={"difficulty": 5}).config.difficulty == 5
    with pytest.raises(ConfigError, match="Did you mean 'difficulty'"):
        Spelling(source=[], config={"difficulte": 5})


def test_a_config_of_a_derived_class_stays_what_it_is() -> None:
    assert whet.Taskset(source=[], config=Words(difficulty=3)).config.difficulty == 3


def test_a_config_is_read_from_a_section_of_a_file(tmp_path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[env.taskset]\ndifficulty = 6\n")
    assert Words.from_toml(path, "env.taskset").difficulty == 6
    with pytest.raises(ConfigError, match=r"no section \[env.harness\]"):
        Play.from_toml(path, "env.harness")


def test_code_and_config_add_their_lists(rows, roll, texts) -> None:
    def good(task, state) -> float:
        return 1.0

    def better(task, state) -> float:
        return 2.0

    config = {"rewards": [{"fn": better, "weight": 0.5}], "system_prompt": "From the config.", "taskset_id": "config"}
    taskset = whet.Taskset(source=rows(), rewards=[good], config=config)
    (state,) = roll(whet.Env(taskset), ["yes"])
    assert state["metrics"] == {"good": 1.0, "better": 2.0, "num_turns": 1.0}
    assert state["reward"] == 2.0
    assert texts(state["prompt"])[0] == "From the config."
    assert state["task"]["taskset_id"] == "config"


@pytest.mark.parametrize(
    "make",
    [
        lambda: whet.Taskset(source=[{"question": "q"}], config={"source": []}),
        lambda: whet.Taskset(source=[], system_prompt="A", config={"system_prompt": "B"}),
        lambda: whet.Harness(max_turns=3, config={"max_turns": 4}),
        lambda: whet.Harness(program=print, config={"program": "math:sqrt"}),
    ],
)
def test_a_setting_that_code_would_override_is_refused_and_not_ignored(make) -> None:
    with pytest.raises(ConfigError, match="would have no effect"):
        make()


def test_code_may_hand_on_what_it_took_from_the_config_and_defaults_of_a_config_yield() -> None:
    class Short(whet.HarnessConfig):
        max_turns: int = 3

    assert whet.Harness(max_turns=4, config={"max_turns": 4}).max_turns == 4
    assert (whet.Harness(config=Short()).max_turns, whet.Harness(max_turns=5, config=Short()).max_turns) == (3, 5)


def test_scoring_changes_weights_and_leaves_functions_out(rows, roll) -> None:
    def good(task, state) -> float:
        return 1.0

    def other(task, state) -> float:
        return 1.0

    scoring = {"good": {"weight": 3.0}, "other": {"skip": True}}
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), rewards=[good, other], config={"scoring": scoring})), ["yes"])
    assert (state["reward"], "other" in state["metrics"]) == (3.0, False)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"scoring": {"god": {"weight": 1}}}, "Did you mean 'good'?"),
        ({"scoring": {"good": {"wieght": 1}}}, "Did you mean 'scoring.good.weight'?"),
        ({"rewards": [{"fn": "math:sqrt", "wight": 1}]}, "Did you mean 'weight'?"),
        ({"rewards": [{"weight": 1}]}, "no fn"),
        ({"rewards": [{"fn": "math:sqrt", "skip": True}]}, "scoring"),
        ({"rewards": ["no_such_module_anywhere:f"]}, "cannot be imported"),
        ({"rewards": ["math:squareroot"]}, "math has no 'squareroot'"),
        ({"rewards": ["sqrt"]}, "'package.module:name'"),
        ({"rewards": [7]}, "should be a function"),
        ({"metrics": [{"fn": "math:sqrt", "weight": 2}]}, "unknown key 'weight'"),
    ],
)
def test_a_mistake_about_a_function_names_it(config, said: str) -> None:
    def good(task, state) -> float:
        return 1.0

    with pytest.raises(ConfigError) as caught:
        whet.Taskset(source=[], rewards=[good], config=config)
    assert said in str(caught.value)


def test_a_function_can_be_named_by_its_place(rows, roll, tmp_path, monkeypatch) -> None:
    (tmp_path / "made_up_signals.py").write_text("def short(task, state):\n    return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    (state,) = roll(whet.Env(whet.Taskset(source=rows(), config={"rewards": ["made_up_signals:short"]})), ["yes"])
    assert state["reward"] == 1.0


def test_one_package_or_command_of_a_sandbox_may_be_text():
    config = whet.SandboxConfig(packages="numpy", setup_commands="true")
    assert (config.packages, config.setup_commands) == (["numpy"], ["true"])
