"""`--workers`: each test once, files whole, in several processes; what dies, fails, skips and warns is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PLUGIN = f"""
import importlib.util
spec = importlib.util.spec_from_file_location("workers", {str(Path(__file__).with_name("workers.py"))!r})
workers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(workers)

def pytest_addoption(parser):
    parser.addoption("--workers", type=int)

def pytest_configure(config):
    config.pluginmanager.register(workers.Workers(config, config.option.workers, lambda test: test.split("::")[0]))
"""
NOTED = """
import os, pytest, signal, subprocess, sys, time, warnings
@pytest.fixture(scope="module")
def process(request):
    yield os.getpid()
    with open("torn", "a") as file:
        print(os.getpid(), request.node.name, file=file)
@pytest.fixture(autouse=True)
def note(request, tmp_path, process):
    with open("ran", "a") as file:
        print(process, request.node.nodeid, tmp_path, file=file)
"""


def run(folder: Path, *options: str, **files: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(PLUGIN)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(NOTED + text)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *options, "."]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr


def ran(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "ran").read_text().splitlines()]


def test_each_test_runs_once_a_file_in_one_process_and_with_a_folder_of_its_own(tmp_path: Path) -> None:
    text = "@pytest.mark.parametrize('n', range(3))\ndef test_it(n): print('said', n)\n"
    code, said = run(tmp_path, "--workers", "2", a=text, b=text, c=text)
    assert code == 0, said
    assert "9 passed" in said
    lines = ran(tmp_path)
    names = [test for _, test, _ in lines]
    assert sorted(names) == sorted(f"test_{file}.py::test_it[{n}]" for file in "abc" for n in range(3))
    assert len({folder for *_, folder in lines}) == 9
    processes = {(test[:9], process) for process, test, _ in lines}
    assert len(processes) == 3
    torn = {tuple(line.split()) for line in (tmp_path / "torn").read_text().splitlines()}
    assert torn == {(process, name) for name, process in processes}


def test_a_worker_that_dies_fails_its_test_and_the_others_run(tmp_path: Path) -> None:
    dies = "def test_1(): pass\ndef test_2(): os.kill(os.getpid(), signal.SIGKILL)\ndef test_3(): pass\n"
    leaves = "def test_4(): subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE); os._exit(3)\n"
    code, said = run(tmp_path, "--workers", "1", dies=dies, leaves=leaves, other="def test_5(): pass\n")
    assert code == 1, said
    assert "3 passed" in said
    assert "2 failed" in said
    assert "the worker that ran this test ended with signal 9" in said
    assert "the worker that ran this test ended with exit status 3" in said
    assert len({process for process, *_ in ran(tmp_path)}) == 3


def test_failures_skips_and_warnings_are_told_with_what_was_printed(tmp_path: Path) -> None:
    text = """
def test_fails():
    print("said before")
    assert [1, 2] == [1, 3]
def test_skips(): pytest.skip("no such program")
def test_warns(): warnings.warn("old form", DeprecationWarning)
"""
    code, said = run(tmp_path, "--workers", "2", "-rs", a=text)
    assert code == 1, said
    for words in ("said before", "At index 1 diff: 2 != 3", "no such program", "DeprecationWarning: old form"):
        assert words in said
    assert re.search(r"1 failed, 1 passed, 1 skipped, 1 warning", said)


def test_a_worker_that_has_much_to_say_is_ended_too(tmp_path: Path) -> None:
    says = "@pytest.mark.parametrize('n', range(500))\ndef test_says(n): print('x' * 300_000)\n"
    code, said = run(tmp_path, "--workers", "2", "-x", a=says, b="def test_fails(): assert False\n")
    assert code == 1, said
    assert "1 failed" in said


@pytest.mark.parametrize("fault", ["assert False", "os.kill(os.getppid(), signal.SIGINT); time.sleep(60)"])
def test_at_the_first_failure_or_ctrl_c_the_others_are_interrupted_and_clean_up(tmp_path: Path, fault: str) -> None:
    waits = "def test_waits(): open('waits', 'w').close(); time.sleep(60)\n"
    fails = f"def test_fails():\n    while not os.path.exists('waits'): pass\n    {fault}\n"
    code, said = run(tmp_path, "--workers", "2", "-x", a=waits, b=fails)
    assert code == (1 if "assert" in fault else 2), said
    assert "test_a.py" in (tmp_path / "torn").read_text()
