"""Programs that look for the environment that scores them, from a Python whose prefix holds all packages.

That is how conda, `python:3.x` images and pip without a virtual environment have it. The prefix is made here: a copy of
the interpreter that runs the tests, with the environment installed into it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from whet.sandboxes.bubblewrap.layout import ELSEWHERE

pytestmark = pytest.mark.usefixtures("bubblewrap")
REPOSITORY = Path(__file__).parents[3]
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = ("site-packages", "dist-packages", "test", "tests", "__pycache__", "config-*", "idlelib", "tkinter", "*.a")
# What a policy would write: it finds the solver by import, else by name anywhere, and asks it.
CHEAT = """
import os, sys
def found():
    try:
        import code_tests.families
        return code_tests.families
    except ImportError: pass
    for folder, _, names in os.walk("/"):
        if "families.py" in names and folder.endswith("code_tests"):
            sys.path.insert(0, os.path.dirname(folder))
            import code_tests.families
            return code_tests.families
print(found().FAMILIES[KIND].solve(PARAMETERS, sys.stdin.read()))
"""
SEEN = """
import importlib.util, os, sys, sysconfig
names = ("whet", "code_tests", "pydantic", "pip", "numpy", "torch")
print([name for name in names if importlib.util.find_spec(name)])
print([entry for path in sys.path if path.endswith("-packages") and os.path.isdir(path) for entry in os.listdir(path)])
print(sysconfig.get_path("stdlib"))
"""
ROLLOUTS = """
import asyncio, json, sys
import whet
from code_tests import load_environment
from whet.sandboxes.bubblewrap.backend import BubblewrapBackend
from whet.sandboxes.protocol import SandboxSpec

def bash(command):
    return {"tool_calls": [{"id": "1", "name": "bash", "arguments": json.dumps({"command": command})}]}

async def main(cheat, seen):
    env = load_environment(num_train=3, num_eval=3, languages=("python",), tests_per_task=3)
    states = []
    for row in env.get_eval_dataset():
        info = row["info"]
        program = cheat.replace("KIND", repr(info["kind"])).replace("PARAMETERS", repr(info["parameters"]))
        command = f"cat > solution.py <<'END'\\n{program}\\nEND"
        states.append(await env.rollout(row, whet.ScriptedClient([bash(command), "done"]), "m", {}))
    await env.rubric.score_group(states)
    async with await BubblewrapBackend().create(SandboxSpec()) as sandbox:
        inside = await sandbox.exec(["python3", "-c", seen])
    print(json.dumps({
        "rewards": [state["reward"] for state in states],
        "errors": [str(state["error"]) for state in states if state["error"]],
        "host": load_environment.__code__.co_filename,
        "inside": inside.stdout.splitlines(),
    }))

asyncio.run(main(*json.load(sys.stdin)))
"""


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    """The interpreter of a prefix that every user may read, as those of images are."""
    base = Path(sys.base_prefix)
    with tempfile.TemporaryDirectory(prefix="whet-prefix-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        prefix = Path(name)
        (prefix / "bin").mkdir()
        shutil.copy(os.path.realpath(base / "bin" / VERSION), prefix / "bin" / VERSION)
        library = prefix / sys.platlibdir / VERSION
        shutil.copytree(base / sys.platlibdir / VERSION, library, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for shared in (base / "lib").glob("libpython*.so*"):
            shutil.copy(shared, prefix / "lib" / shared.name)
        ask = "import site; print(site.getsitepackages()[-1])"  # Debian's has a name of its own for it
        found = subprocess.run([str(prefix / "bin" / VERSION), "-c", ask], capture_output=True, text=True, check=True)
        packages = Path(found.stdout.strip())
        packages.mkdir(parents=True)
        shutil.copytree(REPOSITORY / "environments/code_tests/code_tests", packages / "code_tests")
        others = [str(REPOSITORY / "src"), *(path for path in sys.path if path.endswith("-packages"))]
        (packages / "others.pth").write_text("\n".join(others))
        yield prefix / "bin" / VERSION


def test_the_solver_is_not_visible_inside(python: Path) -> None:
    asked = json.dumps([CHEAT, SEEN])
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [str(python), "-c", ROLLOUTS],
        input=asked,
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["host"].startswith(str(python.parents[1])), "whet was run from the prefix that has the solver"
    assert said["rewards"] == [0.0, 0.0, 0.0]
    assert said["errors"] == []
    visible, installed, library = said["inside"]
    assert (visible, installed) == ("[]", "[]")
    assert library.startswith(ELSEWHERE), "the sandbox has the same Python, without its packages"


def test_the_same_program_finds_the_solver_outside(python: Path) -> None:
    """So the test above can fail."""
    first = "next(iter(__import__('code_tests.families').families.FAMILIES))"
    program = CHEAT.replace("[KIND].solve(PARAMETERS, sys.stdin.read())", "") + f"\nprint({first} in found().FAMILIES)"
    done = subprocess.run([str(python), "-c", program], capture_output=True, text=True, env={}, cwd="/", check=False)
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr
