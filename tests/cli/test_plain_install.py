"""Every command of a `pip install whet` without extras works, or names the extra that it needs in one line.

They run in a virtual environment that has whet and its base dependencies alone, as links to what is installed here.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from packaging.requirements import Requirement

from whet.cli.main import app

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

RUN = """
model = "whet/tiny"
max_steps = 1
batch_size = 4
rollouts_per_example = 2
[sampling]
max_tokens = 8
[eval]
num_examples = 2
[[env]]
id = "reverse-text"
"""
SFT = 'model = "whet/tiny"\nmax_steps = 1\n[data]\npath = "rows.jsonl"\n'
MADE = """
import sys
from whet.cli.main import main
for command in sys.argv[1:]:
    assert main(command.split()) == 0, command
"""
"""Run here, with all extras: what the commands read."""

WORK = """
doctor a
doctor EVAL
train list
train show a
train show s
train logs a
train metrics a
train rollouts a
train compare a s
train get a
train progress a
train checkpoints a
eval list
eval show EVAL
eval compare EVAL EVAL
eval report EVAL
eval export EVAL
eval rescore EVAL
gepa list
gepa run reverse-text -m whet/tiny --dry-run
env init word-game --path made
env check reverse-text --no-sandbox -n 1
env verify reverse-text --no-sandbox -n 1
env generate terminal --to generated -n 4
env list
agent list
cache list
cache prune --unused-days 99999
agent check bash
agent install bash
lab setup workspace
train configs workspace/configs
config show
config set owner my-team
config unset owner
model get whet/tiny
model show
"""
NEED = {
    "serve": "train",
    "env serve reverse-text": "openenv",
    "dashboard --port 0": "dashboard",
    "train run a.toml --name b": "train",
    "train run a.toml --dry-run": "train",
    "train sft s.toml --name b": "train",
    "train sft s.toml --dry-run": "train",
    "train sweep a.toml --vary learning_rate=1e-4,1e-3": "train",
    "train resume a": "train",
    "train export a": "train",
    "train models": "train",
    "eval run reverse-text": "train",
    "eval run reverse-text -m a -b http://127.0.0.1:9/v1": "openai",
    "eval export EVAL --format parquet": "datasets",
    "gepa run reverse-text": "gepa",
    "hub serve": "hub",
    "hub recover": "hub",
    "tinker serve": "tinker",
    "service up": "service",
    "service api": "service",
    "service runner": "service",
    "service tinker": "tinker",
    "service deployments": "service",
    "service rotate-key": "service",
    "cluster check": "train",
    "cluster check a.toml": "train",
    "model list": "train",
    "model convert a b": "train",
}
SAY = {
    "view": "needs a terminal",
    "login --hub http://127.0.0.1:9": "cannot be reached",
    "tinker status": "TINKER_API_KEY holds no key",
    "train stop a": "is not running",
    "train restart a": "train resume",
    "train delete a": "rm -r",
    "train distributions a": "whet view",
    "train submit a.toml -y": "no training service is set",
    "train usage": "no training service is set",
    "eval submit reverse-text -y": "no training service is set",
    "gepa submit reverse-text -y": "no training service is set",
    "gepa show none": "there is no search",
    "gepa report none": "there is no search",
    "env install ./nothing": "error: ",
    "env uninstall word-game": "is installed",
    "env secret set a/b K": "is empty",
    "hub member set o u member": "no hub is set",
    "lab doctor": "pip install 'whet[train]'",
    "deployments create a": "no training service is set",
    "deployments list": "no training service is set",
    "deployments delete d": "no training service is set",
    "secret set K": "no training service is set",
    "secret list": "no training service is set",
    "secret delete K": "no training service is set",
}
WITHOUT_HUB = """
logout
whoami
env push reverse-text
env pull a/b
env info a/b
env inspect a/b
env status reverse-text
env version list a/b
env version yank a/b@1
env version delete a/b@1 -y
env action list a/b
env action logs a/b
env action retry a/b
env secret list a/b
env secret delete a/b K
env var list a/b
env var set a/b K V
env var delete a/b K
hub user add u
hub user list
hub user remove u -y
hub org create o
hub member list o
hub member remove o u
hub token create n
hub token list
hub token revoke i
hub audit list
hub audit verify
"""
SAY |= dict.fromkeys(WITHOUT_HUB.split("\n")[1:-1], "no hub is set")
COMMANDS = [*WORK.split("\n")[1:-1], *NEED, *SAY]

# One process imports what most commands do, and each of them is a child of it.
DRIVER = """
import importlib, json, os, signal, sys, tempfile, traceback
from whet.cli.main import main
USUAL = "service.client.runs rl.stored.views rl.stored.compare evals.sessions.session gepa.run viewer.app"
for name in USUAL.split():
    importlib.import_module(f"whet.{name}")
found = {}
for line in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if child == 0:
            signal.alarm(120)  # a command that waits
            for number in (1, 2):
                os.dup2(said.fileno(), number)
            code = 70
            try:
                code = main(line.split())
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        found[line] = [code, said.read()]
print(json.dumps(found))
"""


def base_distributions() -> list[importlib.metadata.Distribution]:
    """What whet brings with it without any extra, on this machine."""
    found: dict[tuple[str, str], importlib.metadata.Distribution] = {}
    waiting = [(line, "") for line in PROJECT["dependencies"]]
    while waiting:
        line, extra = waiting.pop()
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        for asked in requirement.extras or {""}:
            if (requirement.name, asked) not in found:
                distribution = importlib.metadata.distribution(requirement.name)
                found[requirement.name, asked] = distribution
                waiting += [(more, asked) for more in distribution.requires or ()]
    return list(found.values())


@pytest.fixture(scope="module")
def plain_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a virtual environment with the base dependencies alone."""
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for distribution in base_distributions():
        tops = {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}
        for top in tops:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    whet = importlib.metadata.distribution("whet")
    metadata = next(file.parts[0] for file in whet.files or () if file.name == "METADATA")
    (site / metadata).symlink_to(Path(str(whet.locate_file(metadata))))
    (site / "whet.pth").write_text(f"{ROOT / 'src'}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def said(plain_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and output of each command, in a folder with two runs and an evaluation."""
    folder = tmp_path_factory.mktemp("folder")
    shutil.copytree(ROOT / "environments" / "reverse_text", folder / "environments" / "reverse_text")
    for name, text in {"a.toml": RUN, "s.toml": SFT, "rows.jsonl": '{"prompt": "a", "completion": "b"}\n'}.items():
        (folder / name).write_text(text)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("WHET_", "XDG_", "PYTHON"))}
    own |= {"HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    made = ["train run a.toml", "train sft s.toml", "eval run reverse-text -n 2 -r 1 -t 8"]
    subprocess.run([sys.executable, "-c", MADE, *made], cwd=folder, env=own, check=True, capture_output=True)
    [results] = folder.glob("outputs/evals/*/*/results.jsonl")
    lines = [line.replace("EVAL", str(results.parent.relative_to(folder))) for line in COMMANDS]
    done = subprocess.run(
        [plain_python, "-c", DRIVER], cwd=folder, env=own, input=json.dumps(lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(COMMANDS, json.loads(done.stdout).values(), strict=True))


def paths(command: Any, path: str = "") -> Iterator[str]:
    """The commands below `command`: "train run"."""
    if not hasattr(command, "list_commands"):
        yield path.strip()
        return
    context = typer.Context(command)
    for name in command.list_commands(context):
        yield from paths(command.get_command(context, name), f"{path} {name}")


def test_every_command_is_tried() -> None:
    untried = [
        path
        for path in paths(typer.main.get_command(app))
        if not any(f"{line} ".startswith(f"{path} ") for line in COMMANDS)
    ]
    assert untried == []


@pytest.mark.parts
def test_what_needs_no_extra_works(said: dict[str, tuple[int, str]]) -> None:
    assert {line: said[line] for line in WORK.split("\n")[1:-1] if said[line][0] != 0} == {}


@pytest.mark.parts
def test_what_needs_an_extra_names_it_in_one_line(said: dict[str, tuple[int, str]]) -> None:
    for line, extra in NEED.items():
        code, text = said[line]
        assert (code, text.count("\nerror: ") + text.startswith("error: ")) == (2, 1), f"{line}: {text}"
        last = text.splitlines()[-1]
        assert f"needs the '{extra}' extra. Install it with: pip install 'whet[{extra}]'" in last, f"{line}: {text}"
        assert extra in PROJECT["optional-dependencies"]


@pytest.mark.parts
def test_other_refusals_are_those_of_any_install(said: dict[str, tuple[int, str]]) -> None:
    for line, words in SAY.items():
        code, text = said[line]
        assert code in (1, 2), f"{line}: {text}"
        assert words in text, f"{line}: {text}"
        assert "Traceback" not in text, line
