"""`[tool.whet.eval]`: the evaluation that an environment's author chose."""

from pathlib import Path

import pytest

from whet.errors import ConfigError, EnvironmentLoadError
from whet.evals.planning.toml_file import eval_defaults


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes `environments/my_env` with a table in its pyproject.toml."""
    monkeypatch.chdir(tmp_path)

    def write(table: str, name: str = "my-env", layout: str = "environments/my_env/my_env.py") -> None:
        module = tmp_path / layout
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("raise RuntimeError('imported')\n")
        (tmp_path / "environments/my_env/pyproject.toml").write_text(f'[project]\nname = "{name}"\n{table}')

    return write


@pytest.mark.parametrize("table", ["[tool]\nwhet = 1", "[tool]\nwhet.eval = 1", "[tool]\nverifiers = 1"])
def test_a_table_that_is_none_is_no_crash(package, table: str):
    package(table)
    if "eval" in table:
        with pytest.raises(ConfigError, match="should be a table"):
            eval_defaults("my-env")
    else:
        assert eval_defaults("my-env") == {}


def test_the_table_of_the_package_is_read_without_importing_it(package):
    package("[tool.whet.eval]\nnum_examples = 7\nmax_tokens = 64\n")
    assert eval_defaults("my-env") == {"num_examples": 7, "max_tokens": 64}
    assert eval_defaults("environments/my_env") == {"num_examples": 7, "max_tokens": 64}


@pytest.mark.parametrize("layout", ["environments/my_env/my_env/__init__.py", "environments/my_env/src/my_env.py"])
def test_the_module_may_be_a_package_or_lie_in_src(package, layout):
    package("[tool.whet.eval]\nnum_examples = 7\n", layout=layout)
    assert eval_defaults("my-env") == {"num_examples": 7}


def test_the_table_of_a_package_written_for_0_1_is_read(package):
    package("[tool.verifiers.eval]\nnum_examples = 9\nrollouts_per_example = 2\nsave_every = 3\n")
    assert eval_defaults("my-env") == {"num_examples": 9, "rollouts_per_example": 2}


def test_a_package_without_the_table_has_no_defaults(package):
    package("")
    assert eval_defaults("my-env") == {}


def test_the_file_of_another_project_is_not_taken_for_the_package_s(package):
    package("[tool.whet.eval]\nnum_examples = 7\n", name="the-monorepo")
    assert eval_defaults("my-env") == {}


def test_an_unknown_key_names_the_file_and_the_nearest_key(package):
    package("[tool.whet.eval]\nnum_example = 7\n")
    with pytest.raises(ConfigError, match=r"my_env/pyproject.toml.*num_example'.*Did you mean 'num_examples'"):
        eval_defaults("my-env")


def test_what_is_no_table_is_refused(package):
    package("[tool.whet]\neval = 5\n")
    with pytest.raises(ConfigError, match=r"should be a table"):
        eval_defaults("my-env")


def test_an_environment_that_is_not_there_is_named(package):
    with pytest.raises(EnvironmentLoadError, match="my-env"):
        eval_defaults("my-env")
