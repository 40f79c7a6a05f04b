"""Environments by id: packages, paths, local folders, and every way in which loading fails."""

import sys
import textwrap

import pytest

import whet

GOOD = """
    import whet
    def load_environment(size: int = 2, **extra):
        return whet.SingleTurnEnv(dataset=[{"question": str(i)} for i in range(size)])
"""


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith("whet_test_"):
            del sys.modules[name]


def write(path, code):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


def test_an_installed_package_is_found_by_its_name_with_dashes(tmp_path, monkeypatch):
    write(tmp_path / "site" / "whet_test_installed.py", GOOD)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    env = whet.load_environment("whet-test-installed", size=3)
    assert len(env.get_dataset()) == 3
    assert (env.env_id, env.env_args) == ("whet-test-installed", {"size": 3})


@pytest.mark.parametrize("folder", ["whet-test-local", "whet_test_local"])
def test_a_local_folder_needs_no_installation(tmp_path, folder):
    write(tmp_path / "environments" / folder / "whet_test_local.py", GOOD)
    assert len(whet.load_environment("whet-test-local").get_dataset()) == 2


@pytest.mark.parametrize(
    ("file", "given"),
    [
        ("here/whet_test_file.py", "here/whet_test_file.py"),
        ("here/whet-test-flat/whet_test_flat.py", "./here/whet-test-flat"),
        ("here/whet-test-src/src/whet_test_src/__init__.py", "here/whet-test-src"),
        ("here/whet-test-pkg/whet_test_pkg/__init__.py", "here/whet-test-pkg"),
        ("here/whet_test_self/__init__.py", "here/whet_test_self"),
    ],
)
def test_a_path_to_a_file_or_a_package_is_loaded(tmp_path, file, given):
    write(tmp_path / file, GOOD)
    assert len(whet.load_environment(given).get_dataset()) == 2


def test_a_local_environment_may_import_its_own_modules(tmp_path):
    folder = tmp_path / "environments" / "whet_test_own"
    write(folder / "whet_test_own_rows.py", "ROWS = [{'question': 'q'}]")
    write(
        folder / "whet_test_own.py",
        """
        import whet
        def load_environment():
            from whet_test_own_rows import ROWS
            return whet.SingleTurnEnv(dataset=ROWS)
        """,
    )
    assert len(whet.load_environment("whet_test_own").get_dataset()) == 1


def failure(env_id, **args):
    with pytest.raises(whet.WhetError) as caught:
        whet.load_environment(env_id, **args)
    return str(caught.value)


def test_an_environment_that_is_not_installed_says_how_to_install_it(tmp_path):
    assert "pip install whet-test-nowhere" in failure("whet-test-nowhere")


def test_a_misspelt_local_environment_suggests_the_right_one(tmp_path):
    write(tmp_path / "environments" / "whet_test_words" / "whet_test_words.py", GOOD)
    assert "Did you mean 'whet_test_words'" in failure("whet_test_word")


def test_a_path_that_is_not_there_is_named():
    assert "does not exist" in failure("./nowhere")


def test_a_folder_without_its_module_is_named(tmp_path):
    (tmp_path / "here" / "empty").mkdir(parents=True)
    assert "has no empty.py" in failure("./here/empty")


def test_an_exception_on_import_is_told_with_its_line(tmp_path):
    path = write(tmp_path / "environments" / "whet_test_raises" / "whet_test_raises.py", "x = 1\nint('no number')\n")
    message = failure("whet_test_raises")
    assert "fails on import: ValueError: invalid literal" in message
    assert f"{path}:2" in message


def test_a_missing_module_inside_is_not_taken_for_a_missing_environment(tmp_path):
    write(tmp_path / "environments" / "whet_test_needs" / "whet_test_needs.py", "import no_such_library\n")
    assert "ModuleNotFoundError: No module named 'no_such_library'" in failure("whet_test_needs")


def test_a_syntax_error_is_told_with_its_line(tmp_path):
    path = write(tmp_path / "environments" / "whet_test_syntax" / "whet_test_syntax.py", "x = 1\ndef (:\n")
    assert f"({path}:2)" in failure("whet_test_syntax")


def test_a_package_without_load_environment_is_named(tmp_path):
    write(tmp_path / "environments" / "whet_test_bare" / "whet_test_bare.py", "x = 1\n")
    assert "has no function load_environment" in failure("whet_test_bare")


def test_a_misspelt_argument_suggests_the_right_one(tmp_path):
    write(tmp_path / "environments" / "whet_test_strict" / "whet_test_strict.py", GOOD.replace(", **extra", ""))
    assert "has no argument 'sise'. Did you mean 'size'?" in failure("whet_test_strict", sise=3)


def test_a_missing_argument_is_named(tmp_path):
    write(tmp_path / "environments" / "whet_test_missing" / "whet_test_missing.py", GOOD.replace(" = 2, **extra", ""))
    assert "missing a required argument: 'size'" in failure("whet_test_missing")


def test_an_exception_in_load_environment_is_told_with_its_line(tmp_path):
    code = "def load_environment(size=1):\n    raise OSError('no data')\n"
    path = write(tmp_path / "environments" / "whet_test_oserror" / "whet_test_oserror.py", code)
    message = failure("whet_test_oserror", size=4)
    assert f"raised OSError: no data ({path}:2)" in message
    assert "size=4" in message


def test_something_else_than_an_environment_is_refused(tmp_path):
    write(tmp_path / "environments" / "whet_test_dict" / "whet_test_dict.py", "def load_environment(): return {}")
    assert "returned dict" in failure("whet_test_dict")


def test_missing_keys_are_told_as_they_are(tmp_path):
    code = "import whet\ndef load_environment(): whet.ensure_keys(['WHET_TEST_NO_SUCH_KEY'])"
    write(tmp_path / "environments" / "whet_test_keys" / "whet_test_keys.py", code)
    with pytest.raises(whet.MissingKeyError):
        whet.load_environment("whet_test_keys")


def test_the_environments_own_id_stays(tmp_path):
    code = GOOD.replace("SingleTurnEnv(", "SingleTurnEnv(env_id='mine', ")
    write(tmp_path / "environments" / "whet_test_id" / "whet_test_id.py", code)
    assert whet.load_environment("whet_test_id").env_id == "mine"
