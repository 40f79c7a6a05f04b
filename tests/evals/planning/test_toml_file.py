"""Config files of `whet eval run`: what they come to, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whet.errors import ConfigError
from whet.evals.planning.toml_file import Entry, read_eval_file


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(text: str) -> list[Entry]:
        file = tmp_path / "evals.toml"
        file.write_text(text)
        return read_eval_file(file)

    return read


def test_what_stands_above_the_tables_holds_for_all_and_entries_go_over_it(read: Any) -> None:
    entries = read(
        'model = "mini"\nnum_examples = 20\n[sampling]\ntop_p = 0.9\n'
        '[[eval]]\nenv_id = "a"\n[[eval]]\nenv_id = "b"\nnum_examples = 3\n[eval.sampling]\ntop_k = 5\n'
    )
    assert [entry.layer for entry in entries] == [
        {"environment": "a", "model": "mini", "num_examples": 20, "sampling": {"top_p": 0.9}},
        {"environment": "b", "model": "mini", "num_examples": 3, "sampling": {"top_p": 0.9, "top_k": 5}},
    ]


@pytest.mark.parametrize("key", ["id", "env_id", "environment"])
def test_the_environment_has_three_spellings(key: str, read: Any) -> None:
    assert read(f'[[eval]]\n{key} = "a"\n')[0].layer == {"environment": "a"}


def test_a_file_for_verifiers_is_read(read: Any) -> None:
    entry = read(
        '[[eval]]\nid = "a"\nendpoint_id = "mini"\nnum_workers = "auto"\nsave_results = true\nmax_tokens = 9\n'
        'env_args = { level = 2 }\napi_base_url = "http://localhost:1/v1"\nstate_columns = "turn, timing"\n'
        "[eval.args]\nsize = 3\n[eval.sampling_args]\nenable_thinking = false\n"
    )[0]
    assert entry.layer == {
        "environment": "a",
        "model": "mini",
        "workers": None,
        "save": True,
        "max_tokens": 9,
        "args": {"level": 2, "size": 3},
        "base_url": "http://localhost:1/v1",
        "state_columns": ["turn", "timing"],
        "sampling": {"enable_thinking": False},
    }


def test_temperature_among_the_sampling_arguments_is_the_option(read: Any) -> None:
    assert read('[[eval]]\nid = "a"\n[eval.sampling]\ntemperature = 0.5\n')[0].layer == {
        "environment": "a",
        "temperature": 0.5,
        "sampling": {},
    }


def test_paths_are_relative_to_the_file(read: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    entry = read(
        '[[eval]]\nid = "./envs/a"\nmodel = "../model"\nendpoints = "e.toml"\nenv_file = "keys.env"\n'
        'output_directory = "/out"\n'
    )[0]
    assert entry.layer == {
        "environment": str(tmp_path / "./envs/a"),
        "model": str(tmp_path / "../model"),
        "endpoints": str(tmp_path / "e.toml"),
        "env_file": [str(tmp_path / "keys.env")],
        "output_directory": "/out",
    }


def test_a_name_is_a_path_only_where_it_lies_beside_the_file(read: Any, tmp_path: Path) -> None:
    (tmp_path / "runs/model").mkdir(parents=True)
    here, hub = read('[[eval]]\nid = "a"\nmodel = "runs/model"\n[[eval]]\nid = "a"\nmodel = "whet/tiny"\n')
    assert (here.layer["model"], hub.layer["model"]) == (str(tmp_path / "runs/model"), "whet/tiny")


def test_shuffle_may_be_a_switch(read: Any) -> None:
    values = [read(f'[[eval]]\nid = "a"\nshuffle = {text}\n')[0].layer["shuffle"] for text in ("true", "false", "7")]
    assert values == [0, None, 7]


def test_an_ablation_is_every_combination_the_last_value_fastest(read: Any) -> None:
    entries = read(
        'temperature = 1.0\n[[ablation]]\nenv_id = "a"\n[ablation.args]\nsize = 4\n'
        "[ablation.sweep]\ntemperature = [0.0, 0.5]\n[ablation.sweep.env_args]\nlevel = [1, 2, 3]\n"
    )
    assert [(entry.varied["temperature"], entry.varied["args.level"]) for entry in entries] == [
        (0.0, 1),
        (0.0, 2),
        (0.0, 3),
        (0.5, 1),
        (0.5, 2),
        (0.5, 3),
    ]
    assert entries[-1].layer == {"environment": "a", "temperature": 0.5, "args": {"size": 4, "level": 3}}


def test_environments_and_models_can_be_swept(read: Any) -> None:
    entries = read('[[ablation]]\n[ablation.sweep]\nid = ["a", "b"]\nmodel = ["m", "n"]\n')
    assert [(entry.layer["environment"], entry.layer["model"]) for entry in entries] == [
        ("a", "m"),
        ("a", "n"),
        ("b", "m"),
        ("b", "n"),
    ]


def test_sampling_taskset_and_harness_can_be_swept(read: Any) -> None:
    entries = read(
        '[[ablation]]\nid = "a"\n[ablation.sweep.sampling]\ntop_p = [0.5]\nmax_tokens = [8]\n'
        "[ablation.sweep.taskset]\nlevel = [1]\n[ablation.sweep.harness]\nturns = [2]\n"
    )
    assert entries[0].varied == {"sampling.top_p": 0.5, "max_tokens": 8, "taskset.level": 1, "harness.turns": 2}
    assert entries[0].layer["max_tokens"] == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = 'm'\n", "nothing to evaluate"),
        ('[eval]\nid = "a"\n', r"\[eval\] should be \[\[eval\]\]"),
        ("[[eval]]\nmodel = 'm'\n", r"\[\[eval\]\] 1: 'env_id' is missing"),
        ('[[eval]]\nid = "a"\nmodle = "m"\n', r"\[\[eval\]\] 1: unknown key 'modle'. Did you mean 'model'\?"),
        (
            'num_example = 3\n[[eval]]\nid = "a"\n',
            r"evals.toml: unknown key 'num_example'. Did you mean 'num_examples'",
        ),
        ('[[eval]]\nid = "a"\nenv_id = "b"\n', "'id' and 'env_id' are the same key"),
        ('[[eval]]\nid = "a"\nargs = 3\n', "'args' should be a table"),
        ('[[eval]]\nid = "a"\nargs = { x = 1 }\nenv_args = { x = 2 }\n', "'x' is in 'args' and 'env_args'"),
        ('[[eval]]\nid = "a"\nmax_tokens = 3\nsampling = { max_tokens = 4 }\n', "sampling.max_tokens say the same"),
        ('[[eval]]\nid = "a"\nnum_examples = 0\n', r"\[\[eval\]\] 1: 'num_examples': evaluating no task"),
        ('num_examples = 0\n[[eval]]\nid = "a"\n', r"evals.toml: 'num_examples': evaluating no task"),
        ('[[eval]]\nid = "a"\nmax_retries = true\n', "'max_retries': should be a number"),
        ('[[eval]]\nid = "a"\nmodel = ["m", "n"]\n', r"'model' should be one name; for several, sweep them"),
        ('[[eval]]\nid = "a"\nprovider = "p"\n', "'provider' has no place here: it belongs to an endpoint"),
        ('[[ablation]]\nid = "a"\n', r"\[\[ablation\]\] 1: \[ablation.sweep\] is empty"),
        ('[[ablation]]\nid = "a"\nsweep = 3\n', "should be a table"),
        ('[[ablation]]\nid = "a"\n[ablation.sweep]\ntemperature = []\n', "'temperature' is an empty list"),
        ('[[ablation]]\nid = "a"\n[ablation.sweep]\ntemperature = 0.5\n', "'temperature' should be a list"),
        ('[[ablation]]\nid = "a"\n[ablation.sweep]\ntemperature = [0.5, 0.5]\n', "'temperature' has 0.5 twice"),
        ('[[ablation]]\nid = "a"\n[ablation.sweep]\ntemperature = [-1.0]\n', "'temperature'.*greater than"),
        ('[[ablation]]\nid = "a"\n[ablation.sweep]\ntemprature = [1.0]\n', "Did you mean 'temperature'"),
        ('[[ablation]]\nid = "a"\n[ablation.sweep]\nargs = [1]\n', r"should be a table of lists"),
        ('[[ablation]]\nid = "a"\n[ablation.sweep]\nsave = [true, false]\n', "'save' cannot be swept"),
        (
            '[[ablation]]\nid = "a"\n[ablation.args]\nx = 1\n[ablation.sweep.args]\nx = [1, 2]\n',
            "'args.x' is swept and set in the same ablation",
        ),
        (
            '[[ablation]]\nid = "a"\n[ablation.sweep]\nargs = { x = [1] }\nenv_args = { x = [2] }\n',
            "'args.x' is swept twice",
        ),
    ],
)
def test_a_mistake_is_one_line_that_names_the_file_and_the_key(text: str, message: str, read: Any) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read(text)
    assert "evals.toml" in str(caught.value)
    assert "\n" not in str(caught.value)
