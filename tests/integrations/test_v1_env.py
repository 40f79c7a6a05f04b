"""`v1:` without verifiers: ids, requirements, and interpreters that lack it."""

import sys

import pytest

import whet
from whet.errors import ConfigError
from whet.integrations.v1_process import VERSION, read_target, requirements_of

pytest.importorskip("uvicorn")


def package(tmp_path, *dependencies):
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\ndependencies = {list(dependencies)}\n")
    return tmp_path


def test_another_interpreter_is_refused_with_the_version_that_works():
    env = whet.load_environment("v1:glossary", python=sys.executable)
    with pytest.raises(ConfigError, match=rf"has no verifiers; whet works with verifiers {VERSION}"):
        env.get_dataset()


@pytest.mark.parametrize(
    ("target", "words"), [("./nowhere", "has no package nowhere"), ("a b", "should be v1: and the name")]
)
def test_what_is_no_taskset_is_refused(target, words):
    with pytest.raises(ConfigError, match=words):
        read_target(target)


def test_requirements_are_those_of_the_project_and_the_users(tmp_path):
    folder = package(tmp_path, "verifiers[ta]", "datasets>=4")
    assert requirements_of(folder, ["numpy"]) == [f"verifiers[ta]=={VERSION}", "uv", "datasets>=4", "numpy"]


@pytest.mark.parametrize(
    ("dependency", "words"), [("verifiers>=0.5", f"whet works with {VERSION}"), ("not a name", "not a name")]
)
def test_a_project_that_cannot_be_installed_is_refused(tmp_path, dependency, words):
    with pytest.raises(ConfigError, match=words):
        requirements_of(package(tmp_path, dependency), [])


def test_a_limit_of_turns_belongs_to_the_role():
    with pytest.raises(ConfigError, match="limit its role"):
        whet.load_environment("v1:glossary", max_turns=3)
