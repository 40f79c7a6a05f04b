"""A Python interpreter in a sandbox: what it shows, what it survives, which packages it has.

The sandboxes and interpreters are real ones; the packages are wheels made here, installed by a real pip without a
network.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.envs.sandboxed import packages, repl
from whet.errors import ConfigError
from whet.sandboxes.pool import shared_pool

pytestmark = pytest.mark.usefixtures("bubblewrap")
TASK = [{"question": "q", "answer": "a"}]
RESTARTED = "Note: the interpreter was restarted before this call; earlier variables are lost."
LOST = "the interpreter was restarted and its variables are lost."


def python(code: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "1", "name": "python", "arguments": json.dumps({"code": code})}]}


def rollout(env: whet.Environment, script: Any) -> whet.State:
    return asyncio.run(env.rollout(env.get_dataset()[0], whet.ScriptedClient(script), "m", {}))


def shown(*cells: str, **kwargs: Any) -> list[str]:
    """What the model reads after each of these cells."""
    arguments = {"pip_install_packages": "", "max_turns": -1, **kwargs}
    state = rollout(whet.PythonEnv(dataset=TASK, **arguments), [*map(python, cells), "done"])
    assert state["error"] is None
    return [message.content for message in state["completion"] if message.role == "tool"]


def test_the_model_is_shown_the_code_and_nothing_else() -> None:
    (tool,) = whet.PythonEnv(dataset=TASK).tool_defs or []
    assert tool["name"] == "python"
    assert list(tool["parameters"]["properties"]) == ["code"]


def test_variables_stay_and_the_last_value_is_shown_as_in_a_notebook() -> None:
    assert shown("x = 20", "x * 2", "print('a'); print('b'); x", "_ + 1", "None") == [
        "(no output)",
        "Out[2]: 40",
        "a\nb\nOut[3]: 20",
        "Out[4]: 21",
        "(no output)",
    ]


def test_functions_and_classes_of_one_cell_can_be_used_and_pickled_in_another() -> None:
    code = "import pickle\nclass Box:\n    def __init__(self, x): self.x = x"
    assert shown(code, "pickle.loads(pickle.dumps(Box(3))).x")[1] == "Out[2]: 3"


def test_what_programs_write_that_the_code_starts_is_shown_too() -> None:
    (text,) = shown("import os\nos.system('echo out; echo err >&2')")
    assert text == "out\nstderr:\nerr\nOut[1]: 0"


def test_a_traceback_begins_at_the_models_own_code_and_shows_its_line() -> None:
    (text,) = shown("def f():\n    return 1 / 0\nf()")
    assert text.startswith('Traceback (most recent call last):\n  File "<cell 1>", line 3, in <module>\n    f()\n')
    assert text.endswith("ZeroDivisionError: division by zero")


def test_code_that_is_no_python_says_where() -> None:
    (text,) = shown("def f(:")
    assert text.startswith('  File "<cell 1>", line 1')
    assert text.endswith("SyntaxError: invalid syntax")


def test_what_was_done_before_an_error_is_kept() -> None:
    assert shown("x = 1\nprint('before')\n1/0", "x")[1] == "Out[2]: 1"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input()", "EOFError: EOF when reading a line"),
        ("def f(n): return f(n + 1)\nf(0)", "RecursionError: maximum recursion depth exceeded"),
        ("'\\ud800 é 😀'", "Out[2]: '\\ud800 é 😀'"),
        ("print('\\ud800 é 😀')", "\\ud800 é 😀"),
        ("'a\udc00b'", "UnicodeEncodeError"),
        ("a\0b", "null bytes"),
        ("import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()", "(no output)"),
        ("import os; os.close(0); os.close(1); os.close(2)", "(no output)"),
        ("import sys; sys.stdout = sys.stderr = None", "(no output)"),
        ("class A:\n    def __repr__(self): raise ValueError('no repr')\nA()", "ValueError: no repr"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E: <exception str() failed>"),
        ("import os\npid = os.fork()\nif pid: os.wait()\nprint(bool(pid))", "False\nTrue"),
        ("import builtins, traceback; traceback.format_exception = builtins.repr = None; x.y", "telling of it raised"),
        ("bytearray(1 << 40)", "MemoryError"),
    ],
)
def test_the_interpreter_keeps_its_variables_through(code: str, text: str) -> None:
    first, after = shown("x = 7", code, "print('still here', x)")[1:]
    assert text in first
    assert after == "still here 7"


def test_an_endless_loop_is_interrupted_and_the_variables_are_kept() -> None:
    first, after = shown("x = 0\nwhile True: x += 1", "x > 1000", timeout_per_command_seconds=1)
    assert first.endswith("KeyboardInterrupt\nError: Command timed out after 1s; variables are kept.")
    assert after == "Out[2]: True"


def test_one_that_does_not_let_itself_be_interrupted_is_killed_and_said_so() -> None:
    deaf = (
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf')\nwhile True: time.sleep(60)"
    )
    first, after = shown(deaf, "signal", timeout_per_command_seconds=1)
    assert first == f"deaf\nError: Command timed out after 1s; {LOST}"
    assert "NameError" in after


def test_gigabytes_of_output_are_cut_off_and_the_variables_are_kept() -> None:
    first, after = shown("x = 7\nwhile True: print('y' * 100_000)", "x", max_output_bytes=50_000)
    assert "Error: Command was stopped: it wrote more than 50000 bytes of output; variables are kept." in first
    assert len(first) < 52_000
    assert after == "Out[2]: 7"


def test_gigabytes_from_a_program_that_the_code_started_are_cut_off() -> None:
    first, after = shown("x = 7\nimport os\nos.system('cat /dev/zero')", "x", max_output_bytes=1000)
    assert first.endswith("it wrote more than 1000 bytes of output; variables are kept.")
    assert after == "Out[2]: 7"


def test_a_value_with_millions_of_characters_is_cut() -> None:
    (text,) = shown("'x' * 10_000_000", max_output_bytes=1000)
    assert text.endswith("... (9999002 characters more)")
    assert len(text) < 1100


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os; os._exit(3)", "Command ended the interpreter (exit code 3)"),
        ("import os; os.kill(os.getpid(), 11)", "Command ended the interpreter (killed by SIGSEGV)"),
        ("import os; os.closerange(0, 1000)", "Command ended the interpreter (exit code 70)"),
        ("import os\nfor fd in range(3, 30):\n    try: os.write(fd, b'{}')\n    except OSError: pass", "Command wrote"),
    ],
)
def test_code_that_ends_its_interpreter_gets_a_new_one_and_is_told(code: str, why: str) -> None:
    first, after, last = shown("x = 7", code, "x = 8", "x")[1:]
    assert f"Error: {why}" in first
    assert first.endswith(LOST)
    assert (after, last) == ("(no output)", "Out[2]: 8")


def test_running_out_of_memory_is_told_apart_from_other_ends() -> None:
    hungry = "x = []\nwhile True: x.append(bytearray(1 << 20))"
    (text,) = shown(hungry, memory_gb=0.1)
    assert text == f"Error: Command ran out of memory; {LOST}" or text.endswith("MemoryError")


# Finds the interpreter's own channel among the variables of the frames above, as hostile code would.
CHANNEL = """
import json, os, struct, sys
frame = sys._getframe()
while "control" not in frame.f_locals:
    frame = frame.f_back
request, control = frame.f_locals["request"], frame.f_locals["control"]
def reply(text, nonce):
    data = json.dumps({"status": "ok", "result": text, "nonce": nonce}).encode()
    os.write(control, struct.pack(">I", len(data)) + data)
"""


@pytest.mark.parametrize(
    "forgery",
    [
        "reply('forged', '0' * 32)",
        "os.write(control, struct.pack('>I', 50_000) + b'[' * 50_000)",
        "os.write(control, struct.pack('>I', 2**32 - 1))",
        "os.write(control, b'no message at all')",
    ],
)
def test_a_reply_cannot_be_forged_on_the_interpreters_own_channel(forgery: str) -> None:
    first, after = shown(CHANNEL + forgery, "1 + 1")
    assert first == f"Error: Command wrote to the interpreter's own channel; {LOST}"
    assert after == "Out[1]: 2"


def test_a_fork_bomb_ends_at_the_limit_of_processes() -> None:
    first, after = shown("import os\nwhile True: os.fork()", "1 + 1")
    assert "Resource temporarily unavailable" in first
    assert after == "Out[2]: 2"


def test_an_early_reply_cannot_be_passed_off_as_that_of_a_later_cell() -> None:
    first, second, third = shown(CHANNEL + "reply('early', request['nonce'])", "'second'", "'third'")
    assert "early" in first or LOST in first  # what a cell says of itself it could as well have printed
    assert "second" in second or LOST in second
    assert "early" not in second + third
    assert third.endswith("'third'")


def test_the_channel_to_the_host_is_out_of_the_codes_reach() -> None:
    look = "import os\nlist(map(os.readlink, [f'/proc/{os.getppid()}/fd/{fd}' for fd in range(10)]))"
    (text,) = shown(look)
    assert "PermissionError" in text


def test_killing_the_supervisor_costs_the_variables_and_nothing_else() -> None:
    kill = "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)"
    first, after = shown(kill, "1 + 1")
    assert first == "Error: the interpreter was ended from inside; its variables are lost."
    assert after == f"Out[1]: 2\n{RESTARTED}"


def test_stopping_the_supervisor_does_not_hold_up_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl, "MARGIN_S", 0.5)
    stop = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)"
    first, _ = shown(stop, "1 + 1", timeout_per_command_seconds=0.2)
    assert first == "Error: the interpreter did not answer any more; its variables are lost."


def test_an_interpreter_that_ended_between_two_calls_is_told_with_the_next() -> None:
    env = whet.PythonEnv(dataset=TASK, pip_install_packages="")

    waiting = """
import os, threading
def end_when_told():
    while not os.path.exists("go"):
        pass
    os._exit(1)
threading.Thread(target=end_when_told).start()
os.getpid()
"""

    async def model(prompt: Any, state: whet.State, turn: int) -> Any:
        if turn != 1:
            return python(waiting) if turn == 0 else "done"
        pid = prompt[-1]["content"].removeprefix("Out[1]: ")
        sandbox = await env.sandbox_client.sandbox(state["sandbox_id"])
        await sandbox.exec(["touch", "go"])
        while not (await sandbox.exec(["grep", "State:.*Z", f"/proc/{pid}/status"])).ok:
            await asyncio.sleep(0)
        return python("2")

    state = rollout(env, model)
    assert state["completion"][3].content == f"Out[1]: 2\n{RESTARTED}"


def test_the_shell_is_not_the_models_but_still_the_environments() -> None:
    class Both(whet.PythonEnv):
        @whet.stop
        async def submitted(self, state: whet.State) -> bool:
            return await self.bash("cat answer", state["sandbox_id"], state["sandbox_state"]) == "42"

    env = Both(dataset=TASK, pip_install_packages="")
    state = rollout(
        env, [python("open('answer', 'w').write('41')"), python("open('answer', 'w').write('42')"), python("1")]
    )
    assert state["stop_condition"] == "submitted"


def test_an_environment_can_prepare_the_interpreter_and_ask_it_for_a_verdict() -> None:
    class Prepared(whet.PythonEnv):
        async def setup_state(self, state: whet.State, **kwargs: Any) -> Any:
            state = await super().setup_state(state, **kwargs)
            where = {name: state[name] for name in ("sandbox_id", "sandbox_state", "python_state")}
            await self.python("secret = 6", **where)
            return state

        async def post_rollout(self, state: whet.State) -> None:
            reply = await self._send_worker_request(state["sandbox_id"], state["sandbox_state"], {"code": "answer"})
            state["verdict"] = reply["result"]

    env = Prepared(dataset=TASK, pip_install_packages="")
    assert rollout(env, [python("answer = secret * 7"), "done"])["verdict"] == "42"


def test_times_are_metrics() -> None:
    env = whet.PythonEnv(dataset=TASK, pip_install_packages="")
    (output,) = env.evaluate_sync(whet.ScriptedClient([python("1"), "done"]), "m")["outputs"]
    metrics = output["metrics"]
    assert metrics["python_ready_wait_time"] > 0
    assert metrics["sandbox_command_execution_time"] > 0
    assert metrics["python_calls"] == 1.0


def test_nothing_is_left_when_a_rollout_is_cancelled_in_a_cell() -> None:
    env = whet.PythonEnv(dataset=TASK, pip_install_packages="")

    async def run() -> int:
        client = whet.ScriptedClient([python("open('begun', 'w').close()\nwhile True: pass")])
        task = asyncio.ensure_future(env.rollout(env.get_dataset()[0], client, "m", {}))
        while not env.active_sandboxes:
            await asyncio.sleep(0)
        sandbox = await env.sandbox_client.sandbox(next(iter(env.active_sandboxes)))
        while not (await sandbox.exec(["test", "-e", "begun"])).ok:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return shared_pool().leased

    assert asyncio.run(run()) == 0
    assert env.active_sandboxes == set()


def test_a_sandbox_without_python_is_the_hosts_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repl, "INTERPRETER", "python-that-is-not-there")
    state = rollout(whet.PythonEnv(dataset=TASK, pip_install_packages=""), [python("1")])
    assert isinstance(state["error"], whet.SandboxError)
    assert "No such file or directory" in str(state["error"])


# Packages


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of wheels as pip's only source, and an empty cache that a stranger may look into."""
    folder = Path(tempfile.mkdtemp(prefix="whet-packages-"))
    folder.chmod(0o755)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    monkeypatch.setattr(packages, "cache_directory", lambda: folder / "cache" / "packages")
    yield folder
    shutil.rmtree(folder)


def wheel(folder: Path, name: str, source: str, version: str = "1.0") -> None:
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", source)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def test_packages_can_be_imported_and_not_be_changed(index: Path) -> None:
    wheel(index, "greeting", "text = 'hello'")
    texts = shown(
        "import greeting; greeting.text",
        "open(greeting.__file__, 'w')",
        "import os; os.system('python3 -c \"import greeting; print(greeting.text)\"')",
        pip_install_packages="greeting",
    )
    assert texts[0] == "Out[1]: 'hello'"
    assert "Read-only file system" in texts[1]
    assert texts[2].startswith("hello\n")


def test_packages_are_installed_once(index: Path) -> None:
    wheel(index, "greeting", "text = 'hello'")
    assert shown("import greeting; greeting.text", pip_install_packages="'greeting>=1,<2'") == ["Out[1]: 'hello'"]
    for file in index.glob("*.whl"):
        file.unlink()
    assert shown("import greeting; greeting.text", pip_install_packages="'greeting>=1,<2'") == ["Out[1]: 'hello'"]


def test_a_package_that_there_is_not_ends_the_run_with_pips_own_words(index: Path) -> None:
    env = whet.PythonEnv(dataset=TASK, pip_install_packages="no-such-package")
    with pytest.raises(ConfigError, match="pip could not install no-such-package as wheels for Python 3") as caught:
        env.evaluate_sync(whet.ScriptedClient(["done"]), "m")
    assert "No matching distribution found" in str(caught.value)
    assert not list((index / "cache" / "packages").iterdir())


def test_a_package_without_a_wheel_is_not_built(index: Path) -> None:
    (index / "evil-1.0").mkdir()
    (index / "evil-1.0" / "setup.py").write_text(f"open({str(index / 'ran')!r}, 'w')")
    shutil.make_archive(str(index / "evil-1.0"), "gztar", index, "evil-1.0")
    shutil.rmtree(index / "evil-1.0")
    with pytest.raises(ConfigError, match="could not install evil"):
        whet.PythonEnv(dataset=TASK, pip_install_packages="evil").evaluate_sync(whet.ScriptedClient(["done"]), "m")
    assert not (index / "ran").exists()


@pytest.mark.parametrize(
    "words", ["-r file", "--index-url=http://x y", "./local", "git+https://x/y", "a @ http://x/y.whl", "a;b", "'a"]
)
def test_anything_but_names_and_versions_is_refused(words: str) -> None:
    with pytest.raises(ConfigError, match="pip_install_packages"):
        whet.PythonEnv(dataset=TASK, pip_install_packages=words)


def test_names_and_versions_are_read_as_on_pips_command_line() -> None:
    words = "numpy 'sympy>=1.12,<2' scipy==1.14.* pandas[parquet]~=2.0"
    assert packages.requirements_of(words) == ["numpy", "sympy>=1.12,<2", "scipy==1.14.*", "pandas[parquet]~=2.0"]
    assert packages.requirements_of(" ") == []


def test_wheels_are_chosen_for_the_c_library_inside() -> None:
    glibc = packages.platform_tags("linux", "x86_64", "glibc 2.7")
    assert glibc[:3] == ("manylinux_2_7_x86_64", "manylinux_2_6_x86_64", "manylinux_2_5_x86_64")
    assert "manylinux2014_x86_64" in glibc
    assert packages.platform_tags("linux", "aarch64", "") == ("musllinux_1_2_aarch64", "musllinux_1_1_aarch64")
    assert packages.platform_tags("darwin", "arm64", "") == ()


def test_the_cache_of_a_user_is_where_caches_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert packages.cache_directory() == tmp_path / "whet" / "packages"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert packages.cache_directory() == Path("/var/cache/whet/packages")
