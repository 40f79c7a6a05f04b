"""The thread that trains: failures of the disk, of one model among several, of memory; turns."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

IDS, TARGETS, ONES = [1, 2, 3], [2, 3, 4], [1.0, 1.0, 1.0]
ALL = {"rank": 3, "seed": 0, "train_attn": True, "train_mlp": True, "train_unembed": True}


def test_what_could_not_be_recorded_is_done_once(
    served: Any, client: Any, datum: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step was made, and the disk was full: it is made again from weights that do not have it."""
    import tinker

    from whet.tinker import log

    one = datum(IDS, target_tokens=TARGETS, weights=ONES)
    trainers = [client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=7).result() for _ in range(2)]
    finish, failures = log.finish, 0

    def failing(*args: Any) -> None:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise OSError(28, "No space left on device")
        finish(*args)

    losses = []
    for trainer in trainers:
        if trainer is trainers[1]:
            monkeypatch.setattr("whet.tinker.trainer.log.finish", failing)
        for _ in range(3):
            trainer.forward_backward([one], "cross_entropy")
            trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)).result(timeout=60)
        losses.append(trainer.forward([one], "cross_entropy").result(timeout=60).metrics)
    assert failures == 3
    assert losses[0] == losses[1]


def test_a_loss_that_is_not_finite_is_that_model_s_alone(client: Any, datum: Callable[..., Any]) -> None:
    import tinker

    good, bad = (client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=7).result() for _ in range(2))
    one, much = datum(IDS, target_tokens=TARGETS, weights=ONES), datum(IDS, target_tokens=TARGETS, weights=[3e38] * 3)
    before = bad.forward([one], "cross_entropy").result().metrics
    failing, passing = bad.forward_backward([much], "cross_entropy"), good.forward_backward([one], "cross_entropy")
    assert passing.result().metrics == before
    with pytest.raises(tinker.RequestFailedError, match="not finite"):
        failing.result()
    bad.optim_step(tinker.AdamParams(learning_rate=5e-3)).result()
    assert bad.forward([one], "cross_entropy").result().metrics == before


def test_models_take_turns(served: Any, client: Any, datum: Callable[..., Any]) -> None:
    """A model with many requests does not make another wait for all of them."""
    many, few = (client.create_lora_training_client(base_model="whet/tiny", rank=3).result() for _ in range(2))
    one = [datum(IDS, target_tokens=TARGETS, weights=ONES)]
    gate, compute = threading.Event(), served.bank.forward_backward

    def waiting(works: Any) -> Any:
        gate.wait(30)
        return compute(works)

    served.bank.forward_backward = waiting
    waited = [many.forward_backward(one, "cross_entropy") for _ in range(30)]
    deadline = threading.Event()
    while _count(served) < 30 and not deadline.wait(0.02):
        pass
    last = few.forward_backward(one, "cross_entropy")
    while _count(served) < 31 and not deadline.wait(0.02):
        pass
    gate.set()
    last.result(timeout=60)
    for future in waited:
        future.result(timeout=60)
    turns = [few.model_id in models for models in served.bank.passes]
    assert turns.index(True) <= 2


def _count(served: Any) -> int:
    from sqlalchemy import func, select

    from whet.tinker.storage.tables import TinkerRequest

    with served.server.hub.database.read() as session:
        return int(session.scalar(select(func.count()).where(TinkerRequest.kind == "forward_backward")) or 0)


def test_models_share_memory_that_does_not_hold_all(serving: Any, tmp_path: Path, datum: Callable[..., Any]) -> None:
    """Those that have to leave are made again, with the gradients that they had."""
    import tinker

    one = [datum(IDS, target_tokens=TARGETS, weights=ONES)]
    results = []
    memory = 1 << 30
    for models in (2, 1):
        with serving.serving(tmp_path / str(models)) as served:
            client = tinker.ServiceClient(base_url=served.url, api_key=served.key)
            trainers = [
                client.create_lora_training_client(base_model="whet/tiny", rank=3, seed=i).result() for i in range(2)
            ]
            port = int(served.url.rpartition(":")[2])
        with serving.serving(tmp_path / str(models), port, adapter_bytes=memory) as served:
            for _ in range(4):
                for trainer in trainers:
                    trainer.forward_backward(one, "cross_entropy").result(timeout=60)
                for trainer in trainers:
                    trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)).result(timeout=60)
            results.append([t.forward(one, "cross_entropy").result(timeout=60).metrics for t in trainers])
            assert len(served.bank.names) == models
            memory = 2 * served.bank.bytes_of(served.server.spec_of(ALL)) - 1
            client.close("success").result()
    assert results[0] == results[1]


def test_a_client_that_leaves_in_the_middle_of_a_body_harms_nothing(
    served: Any, client: Any, datum: Callable[..., Any]
) -> None:
    trainer = client.create_lora_training_client(base_model="whet/tiny", rank=3).result()
    host, _, port = served.url.removeprefix("http://").partition(":")
    for _ in range(20):
        with socket.create_connection((host, int(port))) as leaving:
            head = f"POST /api/v1/forward_backward HTTP/1.1\r\nHost: {host}\r\nX-API-Key: {served.key}\r\n"
            leaving.sendall(head.encode() + b"Content-Length: 5000000\r\n\r\n" + b"x" * 10_000)
    one = datum(IDS, target_tokens=TARGETS, weights=ONES)
    assert trainer.forward([one], "cross_entropy").result(timeout=60).metrics["loss:sum"] > 0
