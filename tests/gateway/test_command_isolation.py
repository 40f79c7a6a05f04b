"""What a hostile command can reach from its sandbox: its own session, and nothing else of host, loopback or network."""

import asyncio
import http.server
import importlib.util
import json
import threading
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

import httpx

import whet
from whet.gateway.rollouts import RolloutGateway
from whet.rollouts.groups import run_group

_spec = importlib.util.spec_from_file_location("commands", Path(__file__).parent / "commands.py")
_commands = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_commands)
ASK, env_of, roll = _commands.ASK, _commands.env_of, _commands.roll

TRY = f"""{ASK}
import socket
from urllib.parse import urlsplit
base = os.environ["ANTHROPIC_BASE_URL"]
origin = base.split("/sessions/")[0]
port = urlsplit(base).port

def fetch(url, proxies=None, key=None):
    opener = urllib.request.build_opener(*([] if proxies is None else [urllib.request.ProxyHandler(proxies)]))
    try:
        return opener.open(urllib.request.Request(url, headers={{"x-api-key": key or ""}}), timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return type(error).__name__

def post(url, key):
    try:
        ask([{{"role": "user", "content": "stolen"}}], base=url, key=key)
        return 200
    except urllib.error.HTTPError as error:
        return error.code
"""


pytestmark = pytest.mark.usefixtures("bubblewrap")


@pytest.fixture
def neighbour():
    """Another server on the host's loopback, and the requests that it got."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], asked
    server.shutdown()
    server.server_close()


def found(source: str, **program) -> dict:
    env = env_of(
        f"{TRY}\n{source}\njson.dump(found, open('found.json', 'w'))",
        artifacts={"found": {"path": "found.json", "format": "json"}},
        **program,
    )
    (state,) = roll(env, lambda: "a")
    assert state["error"] is None, state["error"]
    assert state["program"]["exit_code"] == 0, state["program"]["stderr"]
    return state["artifacts"]["found"]


def test_other_ports_of_the_loopback_are_not_there(neighbour) -> None:
    port, asked = neighbour
    seen = found(
        "os.environ['NO_PROXY'] = os.environ['no_proxy'] = ''\n"
        f"found = {{'direct': fetch('http://127.0.0.1:{port}/', {{}}), "
        f"'name': fetch('http://localhost:{port}/'), "
        f"'address': fetch('http://127.0.0.1:{port}/', {{'http': os.environ['HTTP_PROXY']}})}}"
    )
    assert seen == {"direct": "URLError", "name": 403, "address": 403}
    assert asked == []


def test_metadata_and_the_internet_are_not_there() -> None:
    seen = found(
        "found = [fetch('http://169.254.169.254/latest/meta-data/'), fetch('http://metadata.google.internal/'), "
        "fetch('http://example.com/'), fetch('http://[::1]:80/', {'http': os.environ['HTTP_PROXY']})]"
    )
    assert seen == [403, 403, 403, 403]


def test_the_gateway_has_nothing_for_it_but_its_session() -> None:
    seen = found(
        "paths = ['/health', '/metrics', '/v1/models', '/v1/chat/completions', '/sessions', '/']\n"
        "found = [fetch(origin + path, key=os.environ['OPENAI_API_KEY']) for path in paths]\n"
        "found.append(post(origin + '/v1', os.environ['OPENAI_API_KEY']))\n"
        "found.append(post(os.environ['OPENAI_BASE_URL'], 'guess'))\n"
        "found.append(post(os.environ['OPENAI_BASE_URL'], os.environ['OPENAI_API_KEY']))"
    )
    assert seen == [404, 404, 404, 404, 404, 404, 404, 401, 200]


def test_another_rollout_s_session_is_closed_to_it_even_when_it_knows_its_id() -> None:
    """The first rollout tells the second its address, through the model that both have."""
    tell = (
        f"{TRY}\nheard = said([*prompt(), {{'role': 'user', 'content': os.environ['OPENAI_BASE_URL']}}])['content']\n"
        "print(post(heard, os.environ['OPENAI_API_KEY']) if heard.startswith('http') else 'told')\n"
        "said([*prompt(), {'role': 'user', 'content': 'done'}])"
    )
    told, both_there, finished = [], asyncio.Event(), asyncio.Event()

    class Model(whet.ScriptedClient):
        """Each rollout's first answer is the address of the other."""

        def __init__(self):
            super().__init__(lambda: "a")

        async def get_response(self, prompt, *args, **kwargs):
            text = prompt[-1]["content"]
            own = text if text.startswith("http") else None
            if own is not None:
                told.append(own)
                if len(told) == 2:
                    both_there.set()
                await both_there.wait()
            elif text == "stolen":
                raise AssertionError("a rollout has used another's session")
            else:
                told.append(text)
                if len(told) == 4:
                    finished.set()
                await finished.wait()  # so that both sessions are open while they are tried
            response = await super().get_response(prompt, *args, **kwargs)
            if own is not None:
                response.message["content"] = next(other for other in told[:2] if other != own)
            return response

    env = env_of(tell)

    async def attempt():
        try:
            return await run_group(env, [env.get_dataset()[0]] * 2, Model(), "m", {})
        finally:
            await env.close()

    states = asyncio.run(attempt())
    assert [(state["error"], state["program"]["stdout"]) for state in states] == [(None, "401\n")] * 2


def test_files_environment_and_processes_of_the_host_are_not_there(tmp_path, monkeypatch) -> None:
    (tmp_path / "secret").write_text("a secret of the host")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host")
    seen = found(
        f"found = {{'file': os.path.exists({str(tmp_path / 'secret')!r}), "
        "'key': any('sk-of-the-host' in value for value in os.environ.values()), "
        "'processes': sum(name.isdigit() for name in os.listdir('/proc'))}"
    )
    assert (seen["file"], seen["key"]) == (False, False)
    assert seen["processes"] < 5


def test_the_key_of_a_session_is_in_nothing_that_is_kept() -> None:
    env = env_of(f"{ASK}\nsaid(prompt())\nprint(os.environ['OPENAI_API_KEY'])\nsys.exit(os.environ['OPENAI_API_KEY'])")
    (state,) = roll(env, ["a"])
    assert (state["program"]["stdout"], state["program"]["stderr"]) == ("[key]\n", "[key]\n")


def test_a_session_ends_with_its_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, make = [], RolloutGateway.open
    monkeypatch.setattr(RolloutGateway, "open", lambda self, session: opened.append(make(self, session)) or opened[-1])
    env = env_of(f"{ASK}\nsaid(prompt())")

    async def attempt():
        await run_group(env, [env.get_dataset()[0]], whet.ScriptedClient(["a"]), "m", {})
        (session,) = opened
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{session.port}{session.path}/v1") as client:
            asked = {"model": "m", "messages": [{"role": "user", "content": "more"}]}
            headers = {"Authorization": f"Bearer {session.key}"}
            answer = await client.post("/chat/completions", json=asked, headers=headers)
        await env.close()
        return answer

    answer = asyncio.run(attempt())
    assert (answer.status_code, "there is no such session" in answer.text) == (401, True)


def test_what_was_tried_outside_the_session_is_no_turn_of_the_rollout() -> None:
    env = env_of(f"{TRY}\nfetch('http://example.com/')\npost(os.environ['OPENAI_BASE_URL'], 'guess')\nsaid(prompt())")
    (state,) = roll(env, ["a"])
    assert len(state["trajectory"]) == 1
    assert json.dumps(state["trajectory"][0]["prompt"]).count("stolen") == 0
