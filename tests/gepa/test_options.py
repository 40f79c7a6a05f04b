"""From files and options to a config: what goes over what, how it is spelled, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from whet.cli.gepa import app
from whet.errors import ConfigError, GepaError
from whet.gepa.config import OPTIONS, GepaConfig
from whet.gepa.options import load_config, load_resumed
from whet.gepa.records.run_directory import SearchDirectory

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a config file in the folder `configs`, below the one that commands are given in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()

    def make(text: str) -> str:
        (tmp_path / "configs" / "mine.toml").write_text(text)
        return "configs/mine.toml"

    return make


def test_an_environment_alone_is_a_search_with_defaults(write: Write) -> None:
    config = load_config("wordle", {})
    assert (config.env[0].id, config.name, config.max_calls, config.minibatch_size) == ("wordle", "gepa-wordle", 500, 3)
    assert (config.num_train, config.num_val, config.gepa.acceptance) == (100, 50, "paired")


def test_the_name_is_the_first_that_is_free_unless_one_is_given(write: Write) -> None:
    Path("runs/gepa-wordle").mkdir(parents=True)
    assert load_config("wordle", {}).name == "gepa-wordle-2"
    assert load_config("wordle", {"name": "gepa-wordle"}).name == "gepa-wordle"
    assert load_config(write('env_id = "wordle"'), {}).name == "gepa-mine"


def test_the_command_line_goes_over_the_file_and_tables_key_by_key(write: Write) -> None:
    path = write(
        'env_id = "wordle"\nmax_calls = 200\nnum_val = 30\nenv_args = { hints = 1, seed = 2 }\n'
        "[sampling]\ntemperature = 0.5\ntop_p = 0.9\n[gepa]\nmax_unusable = 7\n"
    )
    given = {"max_calls": 300, "sampling": {"top_p": 0.8}, "temperature": 0.7, "env_args": {"hints": 3}}
    config = load_config(path, given)
    assert (config.max_calls, config.num_val) == (300, 30)
    assert config.sampling == {"temperature": 0.7, "top_p": 0.8}
    assert config.env[0].args == {"hints": 3, "seed": 2}
    assert config.gepa.max_unusable == 7


def test_sizes_and_limits_may_be_in_the_gepa_table(write: Write) -> None:
    config = load_config(write('env_id = "wordle"\n[gepa]\nmax_calls = 70\nnum_val = 9\nheld_out = 3\n'), {})
    assert (config.max_calls, config.num_val, config.gepa.held_out) == (70, 9, 3)


def test_both_models_are_opened_as_evaluations_open_theirs(write: Write) -> None:
    Path("configs/endpoints.toml").write_text(
        '[[endpoint]]\nendpoint_id = "mini"\nmodel = "m-1"\nurl = "http://here/v1"\nkey = "MY_KEY"\n'
    )
    path = write(
        'env_id = "wordle"\nmodel = "mini"\nendpoints = "endpoints.toml"\n[sampling]\nmax_tokens = 9\n'
        "[reflection_sampling]\ntemperature = 0\n"
    )
    config = load_config(path, {"device": "cpu"})
    policy, reflector = config.policy(), config.reflector()
    assert (policy.device, reflector.device) == ("cpu", "cpu")
    assert (policy.model, policy.base_url, policy.max_tokens) == ("m-1", "http://here/v1", 9)
    assert (reflector.model, reflector.base_url, reflector.max_tokens, reflector.temperature) == (
        "m-1",
        "http://here/v1",
        None,
        0,
    )
    other = load_config(path, {"reflection_model": "big", "reflection_base_url": "http://there/v1"}).reflector()
    assert (other.model, other.base_url) == ("big", "http://there/v1")


def test_several_environments_are_tables(write: Write) -> None:
    path = write(
        '[[env]]\nid = "wordle"\nweight = 2\n[[env]]\nenv_id = "wordle"\nname = "hard"\nargs = { hints = 0 }\n'
    )
    config = load_config(path, {})
    assert [(env.label, env.weight, env.args) for env in config.env] == [
        ("wordle", 2.0, {}),
        ("hard", 1.0, {"hints": 0}),
    ]
    with pytest.raises(ConfigError, match="-a is for one environment"):
        load_config(path, {"env_args": {"hints": 1}})


def test_paths_are_relative_to_the_file_and_those_of_options_to_where_we_are(write: Write) -> None:
    Path("configs/mine").mkdir()
    Path("configs/prompt.txt").write_text("From a file.\n")
    config = load_config(write('env_id = "./mine"\nseed_prompt = "prompt.txt"\nenv_file = "keys"\n'), {})
    assert config.env[0].id == "configs/mine"
    assert config.seed_prompt == "From a file."
    assert config.env_file == (Path("configs/keys"),)
    assert load_config("wordle", {"seed_prompt": "configs/prompt.txt"}).seed_prompt == "From a file."
    assert load_config("wordle", {"seed_prompt": "Be right."}).seed_prompt == "Be right."


def test_a_seed_prompt_that_is_meant_to_be_a_file_has_to_be_there(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"read from nowhere\.txt: No such file"):
        load_config("wordle", {"seed_prompt": "nowhere.txt"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_calls = 5\n", "'env_id' is missing"),
        ('env_id = "a"\nmax_call = 5\n', "unknown key 'max_call'. Did you mean 'max_calls'"),
        ('env_id = "a"\nmax_calls = 9\n[gepa]\nmax_calls = 5\n', "'max_calls' and gepa.max_calls say the same"),
        ('env_id = "a"\n[gepa]\nmax_char = {}\n', "unknown key 'gepa.max_char'. Did you mean 'gepa.max_chars'"),
        ('env_id = "a"\n[gepa]\nacceptance = "luck"\n', "'gepa.acceptance'"),
        ('env_id = "a"\nid = "b"\n', "'id' is there twice, in two spellings"),
        ('env_id = "a"\n[[env]]\nid = "b"\n', "'env_id' is for one environment"),
        ('[[env]]\nid = "a"\n[[env]]\nid = "a"\n', "is there twice; give each its own name"),
        ('env_id = "a"\nsampling = 3\n', "'sampling' should be a table"),
        ('env_id = "a"\n[sampling]\nseed = 3\n', "would make every call the same"),
        ('env_id = "a"\nminibatch_size = 200\n', "minibatch_size = 200 is more than num_train = 100"),
        ('env_id = "a"\ncomponents = ["prompt"]\n', "'components.0'"),
    ],
)
def test_a_mistake_in_a_file_is_a_line_that_names_it(write: Write, text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as refused:
        load_config(path, {})
    assert message in str(refused.value)
    assert path in str(refused.value)
    assert "\n" not in str(refused.value)


def test_resume_keeps_the_config_except_given_options(write: Write) -> None:
    run = Path("runs/gepa-mine")
    run.mkdir(parents=True)
    first: Any = load_config(write('env_id = "wordle"\nnum_val = 30\n[gepa]\nheld_out = 5\n'), {"name": "gepa-mine"})
    (run / "gepa.toml").write_text(first.to_toml())
    assert load_resumed(run, None, {}) == first
    assert load_resumed(Path("gepa-mine"), None, {}) == first
    assert load_resumed(run, None, {"max_calls": 900}) == first.model_copy(update={"max_calls": 900})


def test_a_run_is_saved_without_secrets_and_asks_for_them_when_it_is_resumed(write: Write) -> None:
    url, args = "http://me:hunter2@h/v1", {"judge_api_key": "hunter3"}
    config: Any = load_config("wordle", {"name": "gepa-mine", "model": "m", "base_url": url, "env_args": args})
    run = SearchDirectory(Path("runs/gepa-mine"))
    run.open(config, {}, resume=False)
    run.close()
    written = [file.read_text() for file in run.path.iterdir()]
    assert len(written) > 1
    assert not [text for text in written if "hunter" in text]
    with pytest.raises(GepaError, match=r"base_url was saved without its secret"):
        load_resumed(run.path, None, {"env_args": args})
    resumed = load_resumed(run.path, "wordle", {"model": "m", "base_url": url, "env_args": args})
    assert resumed.base_url == url


def test_null_arguments_are_left_out_of_the_saved_config(write: Write) -> None:
    config = load_config("wordle", {"env_args": {"hints": None, "words": ["a"]}})
    assert "words" in config.to_toml()


def test_resume_of_a_directory_without_a_run_is_refused(write: Write) -> None:
    with pytest.raises(GepaError, match=r"this is no run of whet gepa; gepa\.toml is missing"):
        load_resumed(Path("configs"), None, {})


def test_without_an_environment_there_is_nothing_to_search(write: Write) -> None:
    with pytest.raises(ConfigError, match="name an environment or a config file"):
        load_config(None, {})


def test_every_field_is_an_option_with_its_description_default_and_short_name() -> None:
    run = get_command(app).commands["run"]  # type: ignore[attr-defined]
    options = {option.name: option for option in run.params}
    assert OPTIONS.keys() - options.keys() == set()
    assert GepaConfig.model_fields.keys() - OPTIONS.keys() == {"env", "gepa"}  # tables of a file
    for name, field in OPTIONS.items():
        assert options[name].help == field.description
    assert {option: options[name].opts for name, option in (("max_calls", "-B"), ("sampling", "-S"))} == {
        "-B": ["--max-calls", "-B"],
        "-S": ["--sampling-args", "-S"],
    }
    assert (options["num_val"].default, options["components"].default) == (50, ["system_prompt"])


def test_options_come_over_a_file_in_the_types_of_a_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write('env_id = "wordle"\nmax_calls = 200\nstate_columns = "a, b"\n[sampling]\ntop_p = 0.9\n')
    seen: list[GepaConfig] = []

    def stop(config: GepaConfig, *_: object, **__: object) -> None:
        seen.append(config)
        raise GepaError("seen")

    monkeypatch.setattr("whet.gepa.run.run_search", stop)
    arguments = ["-N", "30", "-T", "0.5", "-S", '{"top_k": 4}', "-C", "x,y", "-a", '{"hints": 1}', "--env-file", "a,b"]
    models = ["--components", "system_prompt,tools", "-b", "http://127.0.0.1:1/v1"]
    with pytest.raises(GepaError, match="seen"):
        get_command(app).main(["run", path, *arguments, *models], standalone_mode=False)
    [config] = seen
    assert (config.max_calls, config.num_val, config.state_columns) == (200, 30, ("x", "y"))
    assert config.sampling == {"top_p": 0.9, "top_k": 4, "temperature": 0.5}
    assert (config.env_file, config.components) == ((Path("a,b"),), ("system_prompt", "tools"))
    assert config.env[0].args == {"hints": 1}
