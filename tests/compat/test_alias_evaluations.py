"""Names of `verifiers` for evaluations, commands and hosted sandboxes, which work under the alias or say why not."""

import asyncio
import importlib
import importlib.metadata
import subprocess
import sys

import pytest

import whet
from whet.compat import alias


@pytest.fixture(autouse=True)
def aliased(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [alias._Finder(), *sys.meta_path])
    for name in [name for name in sys.modules if name.partition(".")[0] in ("verifiers", "prime_sandboxes")]:
        monkeypatch.delitem(sys.modules, name)


REGISTRY = """
[[endpoint]]
endpoint_id = "mini"
model = "m"
url = "https://a.example/v1"
key = "A_KEY"
headers = { X-Team = "evals" }

[[endpoint]]
endpoint_id = "mini"
model = "m"
api_base_url = "https://b.example/v1"
api_key_var = "B_KEY"

[[endpoint]]
endpoint_id = "claude"
model = "c"
url = "https://c.example"
key = "C_KEY"
type = "anthropic_messages"
"""


def test_endpoints_by_short_name_are_lists_of_replicas(tmp_path):
    from verifiers.utils.eval_utils import load_endpoints

    (tmp_path / "endpoints.toml").write_text(REGISTRY)
    found = load_endpoints(str(tmp_path))
    first, second = found["mini"]
    assert first == {
        "model": "m",
        "url": "https://a.example/v1",
        "key": "A_KEY",
        "api_client_type": "openai_chat_completions",
        "extra_headers": {"X-Team": "evals"},
    }
    assert (second["url"], second["key"], "extra_headers" in second) == ("https://b.example/v1", "B_KEY", False)
    assert [one["api_client_type"] for one in found["claude"]] == ["anthropic_messages"]
    assert load_endpoints(tmp_path / "endpoints.toml") == found


@pytest.mark.parametrize("text", [None, "[[endpoint]]\nmodel = 1\n", "not toml"])
def test_an_endpoints_file_that_is_missing_or_wrong_is_none_with_a_warning(tmp_path, caplog, text):
    from verifiers.utils.eval_utils import load_endpoints

    path = tmp_path / "endpoints.toml"
    if text is not None:
        path.write_text(text)
    assert load_endpoints(str(path)) == {}
    assert str(path) in caplog.text


def test_endpoints_written_in_python_are_refused_and_not_run(tmp_path):
    from verifiers.utils.eval_utils import load_endpoints

    (tmp_path / "endpoints.py").write_text("raise SystemExit('run')\n")
    for path in (tmp_path, tmp_path / "endpoints.py"):
        with pytest.raises(ValueError, match=r"Python endpoint registries are not run; write .*endpoints\.toml"):
            load_endpoints(str(path))
    (tmp_path / "endpoints.toml").write_text(REGISTRY)
    assert set(load_endpoints(str(tmp_path))) == {"mini", "claude"}


@pytest.mark.parametrize("project", ["", '[project]\nname = "with-defaults"\n', '[project]\nname = "another"\n'])
def test_defaults_of_an_evaluation_are_those_of_the_package_alone(tmp_path, monkeypatch, project):
    from verifiers.scripts.eval import get_env_eval_defaults

    (tmp_path / "with_defaults.py").write_text("def load_environment():\n    return None\n")
    (tmp_path / "pyproject.toml").write_text(
        f"{project}[tool.verifiers.eval]\nnum_examples = 20\nrollouts_per_example = 6\nother = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {} if "another" in project else {"num_examples": 20, "rollouts_per_example": 6}
    assert get_env_eval_defaults("with-defaults") == own


@pytest.mark.parametrize(
    ("script", "usage"),
    [
        ("eval", "whet eval run"),
        ("gepa", "whet gepa run"),
        ("init", "whet env init"),
        ("install", "whet env install"),
        ("rl", "whet train run"),
        ("setup", "whet lab setup"),
        ("train", "whet train run"),
        ("tui", "whet view"),
        ("vllm", "whet serve"),
    ],
)
def test_scripts_run_the_commands_of_whet(script, usage, capsys, monkeypatch):
    module = importlib.import_module(f"verifiers.scripts.{script}")
    assert module.main(["--help"]) == 0
    monkeypatch.setattr(sys, "argv", [f"vf-{script}", "--help"])
    assert module.main() == 0
    assert capsys.readouterr().out.count(f"Usage: {usage}") == 2


@pytest.mark.parts
def test_a_script_evaluates(tmp_path, monkeypatch, capsys):
    from verifiers.scripts.eval import main

    (tmp_path / "asks.py").write_text(
        "import verifiers as vf\ndef load_environment():\n"
        "    return vf.SingleTurnEnv(dataset=[{'question': '?', 'answer': 'a'}], rubric=vf.Rubric())\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["./asks.py", "-n", "1", "-r", "1", "-t", "2", "--no-save", "--json"]) == 0
    assert '"examples": 1' in capsys.readouterr().out
    assert main(["./asks.py", "--no-such-option"]) == 2


@pytest.mark.parametrize("script", ["build", "prime_rl"])
def test_scripts_without_a_counterpart_say_so(script):
    module = importlib.import_module(f"verifiers.scripts.{script}")
    with pytest.raises(whet.WhetError, match="instead"):
        module.main([])


@pytest.mark.parametrize(
    ("source", "instead"),
    [
        ("import verifiers.gepa.gepa_utils", "`whet gepa run`"),
        ("import verifiers.serve", "`workers=`"),
        ("import verifiers.scripts.other", "the `whet` command"),
        ("from verifiers.scripts.eval import build_parser", "the `whet` command"),
        ("from verifiers import OpenEnvEnv", "`load_environment('openenv:URL')`"),
        ("from verifiers.envs.integrations.openenv_env import OpenEnvEnv", "`load_environment('openenv:URL')`"),
        ("from verifiers.envs.integrations.browser_env import BrowserEnv", "a `StatefulToolEnv`"),
        ("from prime_sandboxes import ImageClient", "`AsyncSandboxClient`"),
        ("from prime_sandboxes import ConfigDict", "`AsyncSandboxClient`"),
        ("import prime_sandboxes.images", "`AsyncSandboxClient`"),
        ("from prime_tunnel import Tunnel", "a `Harness` with a command"),
    ],
)
def test_a_package_that_imports_what_there_is_not_reads_what_to_write_instead(tmp_path, source, instead):
    (tmp_path / "imports_it.py").write_text(source + "\n")
    program = (
        "import sys, whet\ntry: whet.load_environment('./imports_it.py')\nexcept whet.WhetError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count("Instead: ") == 1
    assert instead in done.stdout


def test_a_response_is_messages_by_the_older_name_too():
    from verifiers.utils.response_utils import parse_response_messages

    message = whet.types.ResponseMessage(content="hi", finish_reason="stop", is_truncated=False)
    response = whet.types.Response(id="1", created=0, model="m", usage=None, message=message)
    (said,) = asyncio.run(parse_response_messages(response, "chat"))
    assert (said["role"], said["content"]) == ("assistant", "hi")


def test_the_client_that_blocks_runs_commands_in_a_sandbox(bubblewrap, tmp_path):
    from prime_sandboxes import APIClient, CreateSandboxRequest, FileUploadResponse, SandboxClient
    from prime_sandboxes.core import APIClient as FromCore

    assert FromCore is APIClient
    client = SandboxClient(APIClient(api_key="k"))
    sandbox = client.create(CreateSandboxRequest(name="blocking", docker_image="python:3.11-slim"))
    try:
        client.wait_for_creation(sandbox.id)
        (tmp_path / "up").write_text("data")
        up = client.upload_file(sandbox.id, "/tmp/up", str(tmp_path / "up"))
        assert isinstance(up, FileUploadResponse)
        assert (up.path, up.size, up.success) == ("/tmp/up", 4, True)
        assert client.upload_bytes(sandbox.id, "/tmp/more", b"123").size == 3
        ran = client.execute_command(sandbox.id, "cat /tmp/up /tmp/more; exit 3")
        assert (ran.stdout, ran.exit_code) == ("data123", 3)
    finally:
        client.bulk_delete([sandbox.id])
    with pytest.raises(whet.SandboxError, match="has been deleted"):
        client.execute_command(sandbox.id, "true")
    with pytest.raises(AttributeError, match="'list'"):
        client.list()
    with pytest.raises(AttributeError, match=r"APIClient\.request is of the hosted service"):
        APIClient().request("GET", "/images")
