"""A gateway in front of a scripted model."""

import importlib.util
import secrets
import uuid
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from whet import ScriptedClient
from whet.clients.usage import UsageTotals
from whet.envs.multiturn_env import trajectory_step
from whet.gateway.app import Gateway
from whet.gateway.sessions import with_reasoning
from whet.types import RolloutTiming, State

_spec = importlib.util.spec_from_file_location("running", Path(__file__).parent / "running.py")
_running = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_running)


class Model(ScriptedClient):
    """Returns the next answer it was given, and records its prompts."""

    def __init__(self):
        super().__init__(self.answer)
        self.answers = []
        self.asked = []

    def answer(self, prompt, tools, sampling_args):
        self.asked.append({"prompt": prompt, "tools": tools, "sampling_args": sampling_args})
        return self.answers.pop(0) if self.answers else "hello"


class RecordedSession:
    """A session without a rollout loop: it records each turn itself."""

    def __init__(self, client, model, *, sampling_args=None):
        self.client, self.model, self.sampling_args = client, model, sampling_args or {}
        self.id, self.secret, self.needs_key = uuid.uuid4().hex, secrets.token_urlsafe(24), True
        self.state = State(
            input={"prompt": [], "example_id": 0},
            client=client,
            model=model,
            sampling_args={},
            trajectory=[],
            trajectory_id=self.id,
            completion=None,
            error=None,
            timing=RolloutTiming(),
            usage=UsageTotals(),
        )

    async def answer(self, request, on_delta=None):
        prompt = with_reasoning(request.messages, self.state)
        listening = {} if on_delta is None else {"on_delta": on_delta}
        sampling_args = {**request.sampling_args, **self.sampling_args}
        response = await self.client.get_response(
            prompt, self.model, sampling_args, request.tools, state=self.state, **listening
        )
        self.state["trajectory"].append(trajectory_step(prompt, response, self.id))
        return response


@pytest.fixture
def recorded_session():
    """`recorded_session(client, model, sampling_args=...)`: a `RecordedSession`."""
    return RecordedSession


@pytest.fixture
def running():
    """`running(gateway)`: the address at which it answers, while the `with` lasts."""
    return _running.running


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def gateway(model):
    return Gateway({"scripted": model})


@pytest.fixture
def address(gateway):
    with _running.running(gateway) as address:
        yield address
