"""Sandboxes of toolsets, real ones."""

import shlex

import pytest

import whet
from whet.errors import ConfigError


async def shell(command: str, sandbox, state) -> str:
    """Run a command.

    Args:
        command: The command.
    """
    state["sandbox_id"] = sandbox.id
    result = await sandbox.execute(command)
    return result.stdout.strip() or f"exit code {result.exit_code}"


def toolset(**sandbox) -> whet.Toolset:
    return whet.Toolset(tools=[shell], write=True, sandbox=sandbox)


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(("scope", "sandboxes"), [("rollout", 2), ("group", 1), ("global", 1)])
def test_a_tool_has_a_sandbox_of_its_scope_which_the_model_does_not_see(rows, roll, call, scope, sandboxes) -> None:
    env = whet.Env(whet.Taskset(source=rows(), toolsets=[toolset(scope=scope, setup_commands=["echo made > ready"])]))
    states = roll(
        env, [call("shell", command="cat ready; echo $HOME"), call("shell", command="exit 3"), "done"], size=2
    )
    for state in states:
        assert state["error"] is None
        assert list(state["tool_defs"][0]["parameters"]["properties"]) == ["command"]
        first, second = (message["content"] for message in state["completion"] if message["role"] == "tool")
        assert first.startswith("made\n/")
        assert second == "exit code 3"
    assert len({state["sandbox_id"] for state in states}) == sandboxes


@pytest.mark.usefixtures("bubblewrap")
def test_files_go_in_and_out_and_a_reward_may_look(rows, roll, call) -> None:
    async def keep(text: str, sandbox) -> str:
        """Keep a text."""
        await sandbox.upload_bytes("kept.txt", text.encode())
        return "kept"

    async def kept(sandbox) -> str:
        """Look."""
        return (await sandbox.read_file("kept.txt")).content

    async def looked(task, state) -> float:
        return float(await state.get_tools()["kept"]() == "whet")

    tools = whet.Toolset(tools=[keep, kept], sandbox={"scope": "rollout"})
    env = whet.Env(whet.Taskset(source=rows(), toolsets=[tools], rewards=[looked]))
    (state,) = roll(env, [call("keep", text="whet"), "done"])
    assert (state["error"], state["reward"]) == (None, 1.0)


@pytest.mark.usefixtures("bubblewrap")
def test_a_command_that_takes_too_long_is_the_tool_s_answer(rows, roll, call) -> None:
    env = whet.Env(whet.Taskset(source=rows(), toolsets=[toolset(command_timeout=1)]))
    (state,) = roll(env, [call("shell", command="sleep 30"), "done"])
    assert (state["error"], "timed out" in state["completion"][1]["content"]) == (None, True)


@pytest.mark.usefixtures("bubblewrap")
def test_a_setup_that_fails_fails_the_rollout(rows, roll, call) -> None:
    quoted = shlex.quote("no such thing")
    env = whet.Env(whet.Taskset(source=rows(), toolsets=[toolset(setup_commands=[f"echo {quoted} >&2; exit 1"])]))
    (state,) = roll(env, [call("shell", command="true"), "done"])
    assert isinstance(state["error"], whet.SandboxError)
    assert "no such thing" in str(state["error"])


@pytest.mark.usefixtures("bubblewrap")
def test_a_user_has_a_sandbox_too(rows, roll, texts) -> None:
    async def answer(transcript, sandbox):
        if len(transcript) > 2:
            return []
        return [{"role": "user", "content": (await sandbox.execute("echo from inside")).stdout.strip()}]

    (state,) = roll(whet.Env(whet.Taskset(source=rows(), user=whet.User(answer, sandbox={}))), ["a", "b"])
    assert texts(state["completion"]) == ["a", "from inside", "b"]


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        ({"imag": "python:3.11-slim"}, "Did you mean 'image'"),
        ({"gpu_count": 1}, "GPU"),
        ({"prefer": "image"}, "prefer"),
        ("program", "sandbox = {} is one of its own"),
        ("image", "sandbox = {} is one of its own"),
        ({"packages": ["-e ."]}, "-e"),
    ],
)
def test_a_sandbox_that_cannot_be_is_refused_when_it_is_given(sandbox, said) -> None:
    with pytest.raises(ConfigError) as caught:
        whet.Toolset(tools=[shell], sandbox=sandbox)
    assert said in str(caught.value)


def test_the_program_s_sandbox_is_preferred_and_its_own_taken_where_none_is_shared() -> None:
    made = whet.Toolset(tools=[shell], sandbox={"prefer": "program", "memory_gb": 1})
    assert made.sandbox._request() == whet.Toolset(tools=[shell], sandbox={"memory_gb": 1}).sandbox._request()


@pytest.mark.parametrize(("sandbox", "lines"), [({}, 0), ({"network": ["pypi.org"]}, 0), (None, 1)])
def test_network_access_opens_no_network_and_says_so(sandbox, lines, caplog) -> None:
    given = {"network_access": True} if sandbox is None else {"network_access": bool(sandbox), **sandbox}
    made = whet.Toolset(tools=[shell], sandbox=given).sandbox
    assert made._request().network == given.get("network", [])
    assert len([record for record in caplog.records if "network = ['pypi.org']" in record.message]) == lines
