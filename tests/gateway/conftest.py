"""A gateway in front of a scripted model."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")

from whet import ScriptedClient
from whet.gateway.app import Gateway

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
