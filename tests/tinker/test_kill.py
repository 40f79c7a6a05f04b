"""A server that is killed again and again: no step is lost and none is done twice, and no client gives up."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

STEPS = 14
IMPORTED = (
    "peft",
    "transformers.conversion_mapping",
    "whet.cli.main",
    "whet.cli.tinker",
    "whet.hub.serve",
    "whet.inference.loading",
    "whet.inference.plain.weights",
    "whet.inference.policy_client",
    "whet.rl.learner.make",
    "whet.tinker.api.app",
    "whet.tinker.opening",
)


@pytest.fixture(scope="module")
def warm_tinker(warm_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """As `warm`, and has imported what a training server needs, which else is most of the time of a start."""
    server = type(warm_server)(tmp_path_factory.mktemp("warm"), IMPORTED)
    yield server
    server.close()


def free_port() -> int:
    """Below the ports of outgoing connections, one of which could take it while no server runs."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Killed:
    """A server in a process of its own on one port, and a thread that kills it."""

    def __init__(self, warm: Any, *program: str) -> None:
        self.warm = warm
        self.port = free_port()
        self.program = [*program, str(self.port)]
        self.kills, self.wished, self.over = 0, 0, threading.Event()
        self.key = self._start()

    def _start(self) -> str:
        self.process = self.warm.start(*self.program)
        line = self.process.stdout.readline()
        assert "shown only now" in line or " at http://" in line, line
        return line.strip().rpartition(" ")[2]

    def kill_often(self, times: int) -> None:
        """As often as is wished for by then, each at some moment of what the client does then."""
        chance = random.Random(times)
        while self.kills < times and not self.over.wait(chance.uniform(0.0, 0.05)):
            if self.kills < self.wished:
                self._kill()
                self.kills += 1
                self._start()

    def _kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.close()

    def end(self) -> None:
        self.over.set()
        self._kill()


@contextlib.contextmanager
def killed(warm: Any, times: int, *program: str) -> Iterator[Killed]:
    server = Killed(warm, *program)
    killer = threading.Thread(target=server.kill_often, args=(times,))
    killer.start()
    try:
        yield server
    finally:
        server.over.set()
        killer.join()
        server.end()


def losses(url: str, key: str, datum: Callable[..., Any], before: Callable[[int], None], steps: int) -> list[float]:
    import tinker

    client = tinker.ServiceClient(base_url=url, api_key=key)
    trainer = client.create_lora_training_client(base_model="whet/tiny", rank=4, seed=1).result(timeout=120)
    one, futures = datum([1, 2, 3], target_tokens=[2, 3, 4], weights=[1.0, 0.5, 2.0]), []
    for i in range(steps):
        before(i)
        futures.append(trainer.forward_backward([one], "cross_entropy"))
        trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)).result(timeout=120)
    saved = trainer.save_state("last").result(timeout=120).path
    again = client.create_training_client_from_state(saved).result(timeout=120)
    last = again.forward([one], "cross_entropy").result(timeout=120).metrics["loss:sum"]
    return [*(future.result(timeout=120).metrics["loss:sum"] for future in futures), last]


@pytest.mark.parts
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("database", "times"),
    [
        ("sqlite", 10),
        ("postgresql", 2),
        pytest.param("sqlite", 1000, marks=[pytest.mark.long, pytest.mark.timeout(20_000)]),
    ],
)
def test_each_step_is_done_once(
    request: pytest.FixtureRequest,
    warm_tinker: Any,
    tmp_path: Path,
    datum: Callable[..., Any],
    database: str,
    times: int,
) -> None:
    def program(name: str) -> list[str]:
        serve = ["tinker", "serve", "whet/tiny", "--state-every", "3"]
        url = ["--database", request.getfixturevalue("postgresql").database()] if database == "postgresql" else []
        return [*serve, *url, "--data", str(tmp_path / name), "--port"]

    with killed(warm_tinker, 0, *program("whole")) as server:
        url = f"http://127.0.0.1:{server.port}"
        expected = losses(url, server.key, datum, lambda i: None, max(STEPS, times))
    assert min(expected) < expected[0]
    steps = len(expected) - 1
    with killed(warm_tinker, times, *program("killed")) as server:

        def kill(i: int) -> None:
            server.wished = times * (i + 1) // steps

        assert losses(f"http://127.0.0.1:{server.port}", server.key, datum, kill, steps) == expected
        assert server.kills == times
        curves = next((tmp_path / "killed" / "runs").glob("*-train-0/metrics.jsonl")).read_text().splitlines()
        rows = [json.loads(line) for line in curves]
        assert [row["step"] for row in rows] == list(range(1, steps + 1))
        assert [row["optim/loss"] * 3 for row in rows] == pytest.approx(expected[:-1])


def test_a_start_goes_on_where_the_log_ends(serving: Any, tmp_path: Path, datum: Callable[..., Any]) -> None:
    """Gradients of passes without a step, too: they are computed again."""
    import tinker

    one = datum([1, 2, 3], target_tokens=[2, 3, 4], weights=[1.0, 0.5, 2.0])
    results = []
    for name, stop in (("whole", False), ("stopped", True)):
        with serving.serving(tmp_path / name, state_every=2) as served:
            client = tinker.ServiceClient(base_url=served.url, api_key=served.key)
            trainer = client.create_lora_training_client(base_model="whet/tiny", rank=4, seed=1).result()
            for _ in range(5):
                trainer.forward_backward([one], "cross_entropy").result()
                trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)).result()
            trainer.forward_backward([one], "cross_entropy").result()
            port, key = int(served.url.rpartition(":")[2]), served.key
            if not stop:
                trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)).result()
                results.append(trainer.forward([one], "cross_entropy").result().metrics)
                continue
        with serving.serving(tmp_path / name, port) as served:
            assert served.key is None
            assert key is not None
            assert not served.bank.names  # made again when they are needed
            trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)).result(timeout=60)
            results.append(trainer.forward([one], "cross_entropy").result(timeout=60).metrics)
            assert len(served.bank.steps) == 2  # one after the last state, and the new one
    assert results[0] == results[1]
