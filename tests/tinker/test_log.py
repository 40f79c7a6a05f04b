"""Order, repetition, owners: over HTTP, as no SDK would send it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tinker.proto import tinker_public_pb2 as pb

from whet.rl.learner.adapters.work import AdapterSpec

API = "/api/v1"

BASE = "whet/tiny"


class Raw:
    """A client that sends what it is told to."""

    def __init__(self, url: str, key: str | None) -> None:
        self.http = httpx.Client(base_url=url, headers={"X-API-Key": key or ""}, timeout=60)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(API + path, json=body)

    def session(self) -> str:
        return str(self.post("/create_session", tags=[], user_metadata=None, sdk_version="0").json()["session_id"])

    def model(self, rank: int = 2) -> str:
        made = self.post(
            "/create_model",
            session_id=self.session(),
            model_seq_id=0,
            base_model="whet/tiny",
            lora_config={"rank": rank},
        )
        return str(self.answer(made.json()["request_id"])["model_id"])

    def passing(self, model: str, seq: int, weight: float = 1.0, **more: Any) -> httpx.Response:
        message = pb.ForwardBackwardRequest(model_id=model, seq_id=seq, loss_fn="cross_entropy", **more)
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.array([1, 2], np.int32).tobytes()
        datum.loss_fn_inputs["target_tokens"].CopyFrom(_tensor([3, 4], np.int64, pb.DTYPE_INT64))
        datum.loss_fn_inputs["weights"].CopyFrom(_tensor([weight, weight], np.float32, pb.DTYPE_FLOAT32))
        return self.body(message.SerializeToString())

    def body(self, content: bytes) -> httpx.Response:
        headers = {"Content-Type": "application/x-protobuf"}
        return self.http.post(f"{API}/forward_backward", content=content, headers=headers)

    def step(self, model: str, seq: int, rate: float = 0.1) -> httpx.Response:
        return self.post("/optim_step", model_id=model, seq_id=seq, adam_params={"learning_rate": rate})

    def answer(self, request: str) -> Any:
        while True:
            response = self.post("/retrieve_future", request_id=request)
            if "protobuf" in response.headers["content-type"]:
                return pb.ForwardBackwardOutput.FromString(response.content)
            if response.json().get("type") != "try_again":
                return response.json()


def _tensor(values: list[float], kind: Any, dtype: int) -> pb.Tensor:
    return pb.Tensor(dense=np.array(values, kind).tobytes(), dtype=dtype, shape=[len(values)])


@pytest.fixture
def raw(served: Any) -> Iterator[Raw]:
    client = Raw(served.url, served.key)
    yield client
    client.http.close()


def test_requests_are_carried_out_in_their_order(raw: Raw, served: Any) -> None:
    model = raw.model()
    ids = [raw.step(model, 4), raw.passing(model, 3), raw.step(model, 2)]
    time.sleep(0.2)
    assert served.bank.steps == []
    first = raw.passing(model, 1)
    for response in (*ids, first):
        assert response.status_code == 200
        raw.answer(response.json()["request_id"])
    assert served.bank.steps == [model, model]


def test_a_request_that_is_sent_again_is_carried_out_once(raw: Raw, served: Any) -> None:
    model = raw.model()
    raw.passing(model, 1)
    answers = [raw.step(model, 2).json()["request_id"] for _ in range(3)]
    assert len(set(answers)) == 1
    first, second = (raw.answer(answers[0]) for _ in range(2))
    assert first == second
    assert first["metrics"]["grad_norm"] > 0
    assert raw.step(model, 2).json()["request_id"] == answers[0]
    assert served.bank.steps == [model]
    other = raw.step(model, 2, rate=0.5)
    assert other.status_code == 422
    assert "was another request" in other.text


def test_only_what_is_repeated_after_a_start_is_kept(raw: Raw, served: Any) -> None:
    from sqlalchemy import select

    from whet.tinker.storage.tables import TinkerRequest

    model = raw.model()
    raw.answer(raw.passing(model, 1, forward_only=True).json()["request_id"])
    raw.answer(raw.passing(model, 2).json()["request_id"])
    with served.server.hub.database.read() as session:
        kept = select(TinkerRequest.seq).where(TinkerRequest.body.is_not(None))
        assert list(session.scalars(kept)) == [2]


def test_many_at_once_are_one(raw: Raw, served: Any) -> None:
    model = raw.model()
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(raw.passing(model, 1).json()["request_id"])) for _ in "12345"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(ids)) == 1
    raw.answer(ids[0])
    assert served.bank.passes == [[model]]


def test_bodies_that_are_none_are_refused(raw: Raw) -> None:
    model = raw.model()
    assert raw.body(b"\xff\xff\xff").status_code == 400
    assert raw.body(b"x" * (33 << 20)).status_code == 413
    assert raw.passing(model, -5).status_code in (410, 422)
    assert raw.post("/optim_step", model_id=model, seq_id=1, adam_params={"speed": 1}).status_code == 422
    message = pb.ForwardBackwardRequest(model_id=model, seq_id=1, loss_fn="cross_entropy")
    message.data.add().model_input.add().encoded_text.tokens = b"123"
    failed = raw.answer(raw.body(message.SerializeToString()).json()["request_id"])
    assert "3 bytes are no whole numbers" in failed["error"]
    message.seq_id, message.data[0].model_input[0].image.data = 2, b"png"
    failed = raw.answer(raw.body(message.SerializeToString()).json()["request_id"])
    assert "reads tokens only, not 'image'" in failed["error"]
    assert raw.answer(raw.passing(model, 3).json()["request_id"]).metrics["loss:sum"] > 0


def test_a_large_body_is_read_of_a_client_with_a_key_alone(raw: Raw, served: Any) -> None:
    for path in ("forward_backward", "asample"):
        sent = 0

        def body(path: str = path) -> Iterator[bytes]:
            nonlocal sent
            for _ in range(60):
                sent += 1
                yield b"x" * (1 << 20)

        with contextlib.suppress(httpx.WriteError):
            assert httpx.post(f"{served.url}{API}/{path}", content=body(), timeout=60).status_code == 401
        assert sent < 60


def test_a_body_that_breaks_off_is_as_if_it_was_not_sent(raw: Raw, served: Any) -> None:
    model, other = raw.model(), raw.model()
    address = httpx.URL(served.url)
    for seq in (1, 2):
        with socket.create_connection((address.host, address.port)) as connection:
            head = f"POST {API}/forward_backward HTTP/1.1\r\nHost: {address.host}\r\nX-API-Key: {served.key}\r\n"
            connection.sendall(f"{head}Content-Length: {30 << 20}\r\n\r\n".encode() + b"\n" * (1 << 20))
        for one in (model, other):
            assert raw.answer(raw.passing(one, seq).json()["request_id"]).metrics["loss:sum"] > 0


def test_sparse_tensors_are_read_or_refused(raw: Raw) -> None:
    model = raw.model()

    def send(seq: int, columns: list[int]) -> Any:
        message = pb.ForwardBackwardRequest(model_id=model, seq_id=seq, loss_fn="cross_entropy")
        datum = message.data.add()
        datum.model_input.add().encoded_text.tokens = np.array([1, 2], np.int32).tobytes()
        targets = np.array([[3, 4], [5, 6]])
        tensor = datum.loss_fn_inputs["target_tokens"]
        tensor.dense, tensor.dtype = targets.tobytes(), pb.DTYPE_INT64
        tensor.shape.extend(targets.shape)
        weights = datum.loss_fn_inputs["weights"]
        weights.dtype = pb.DTYPE_FLOAT32
        weights.shape.extend(targets.shape)
        weights.sparse_csr.values = np.array([2.0, 3.0], np.float32).tobytes()
        weights.sparse_csr.crow_indices = np.array([0, 1, 2]).tobytes()
        weights.sparse_csr.col_indices = np.array(columns).tobytes()
        return raw.answer(raw.body(message.SerializeToString()).json()["request_id"])

    output = send(1, [1, 0])
    p = np.frombuffer(output.loss_fn_outputs[0].fields["logprobs"].data, np.float32).reshape(2, 2)
    assert output.metrics["loss:sum"] == pytest.approx(-(2 * p[0, 1] + 3 * p[1, 0]), rel=1e-5)
    assert "do not fit its shape" in send(2, [1, 2])["error"]


def test_nothing_of_another_user_is_reached(raw: Raw, served: Any) -> None:
    from whet.hub.domain.accounts import DAY_S, add_account, issue
    from whet.hub.policy import Scope

    with served.server.hub.database.write() as session:
        now = served.server.hub.clock()
        eve = add_account(session, "eve", "user", "", now)
        tokens = [issue(session, eve, "one", scope, DAY_S, now)[1] for scope in (Scope.PUSH, Scope.READ)]
    model, own = raw.model(), Raw(served.url, "tml-" + tokens[0])
    request = raw.passing(model, 1).json()["request_id"]
    for response in (
        own.passing(model, 2),
        own.step(model, 2),
        own.post("/get_info", model_id=model),
        own.post("/retrieve_future", request_id=request),
        own.post("/session_heartbeat", session_id=model.split(":")[0]),
        own.post("/unload_model", model_id=model),
        own.post(
            "/create_model", session_id=model[:16], model_seq_id=1, base_model="whet/tiny", lora_config={"rank": 2}
        ),
    ):
        assert response.status_code == 404
    assert Raw(served.url, "tml-" + tokens[1]).post("/create_session").status_code in (403, 422)
    for key in ("tml-whet_x", "", "nothing"):
        assert Raw(served.url, key).post("/client/config", sdk_version="0").status_code == 401
    raw.answer(request)


def test_a_gap_ends_after_a_time(tmp_path: Path, serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.tinker.trainer.TIDY_S", 0.0)
    with serving.serving(tmp_path / "data", gap_s=0.3) as served:
        raw = Raw(served.url, served.key)
        model = raw.model()
        failed = raw.answer(raw.passing(model, 2).json()["request_id"])
        assert f"the request 1 of {model} never came" in failed["error"]
        assert raw.answer(raw.passing(model, 3).json()["request_id"]).metrics["loss:sum"] > 0
        assert raw.passing(model, 1).status_code == 410


def test_room_for_models_is_counted(tmp_path: Path, serving: Any) -> None:
    _, bank = serving.recorded()
    layers = tuple(name for names in bank.targets.values() for name in names)
    two, four = (bank.bytes_of(AdapterSpec(rank=rank, targets=layers)) for rank in (2, 4))
    with serving.serving(tmp_path / "data", adapter_bytes=two + four - 1) as served:
        raw = Raw(served.url, served.key)
        raw.model(rank=2)
        body: dict[str, Any] = {"model_seq_id": 0, "base_model": BASE}
        for rank, status, says in ((4, 429, f"this one needs {four}"), (8, 422, "")):
            full = raw.post("/create_model", session_id=raw.session(), **body, lora_config={"rank": rank})
            assert full.status_code == status
            assert says in full.text


def test_a_session_that_ended_gives_its_room_back(
    tmp_path: Path, serving: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whet.tinker.trainer.TIDY_S", 0.0)
    with serving.serving(tmp_path / "data") as served:
        raw = Raw(served.url, served.key)
        model = raw.model()
        session = model.split(":")[0]
        assert raw.post(f"/sessions/{session}/finish", reason={"type": "success"}).status_code == 204
        assert raw.post("/session_heartbeat", session_id=session).status_code == 410
        deadline = time.monotonic() + 10
        while served.bank.names and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not served.bank.names
        assert "was unloaded" in raw.passing(model, 1).text


def test_the_log_takes_so_many_bytes(tmp_path: Path, serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is never stepped fills it; a step makes room, since a state follows."""
    monkeypatch.setattr("whet.tinker.quota.COUNTED_EVERY_S", 0.0)
    for limit, more in (("own_log_bytes", {}), ("log_bytes", {"state_every": 99, "state_bytes": 1})):
        with serving.serving(tmp_path / limit, **{limit: 1000, "state_every": 1, **more}) as served:
            raw = Raw(served.url, served.key)
            model, seq = raw.model(), 1
            while (sent := raw.passing(model, seq)).status_code == 200:
                raw.answer(sent.json()["request_id"])
                seq += 1
            assert 3 < seq < 15
            assert sent.status_code == 429
            assert "1000" in sent.text
            assert raw.passing(model, seq).status_code == 429
            raw.answer(raw.step(model, seq).json()["request_id"])
            raw.answer(raw.post("/optim_step", model_id=model, adam_params={}).json()["request_id"])
            assert raw.passing(model, seq + 2).status_code == 200


def test_waiting_requests_are_counted(tmp_path: Path, serving: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.tinker.trainer.TIDY_S", 0.0)
    with serving.serving(tmp_path / "data", waiting=3) as served:
        raw = Raw(served.url, served.key)
        model = raw.model()
        ids = [raw.passing(model, seq).json()["request_id"] for seq in (2, 3, 4)]
        refused = raw.passing(model, 1)
        assert refused.status_code == 429
        assert "3 requests of hub-admin wait already" in refused.text
        monkeypatch.setattr(served.server.hub, "clock", lambda: time.time() + 1000)
        assert "the request 1" in raw.answer(ids[0])["error"]
        for id in ids[1:]:  # their turn has come
            assert raw.answer(id).metrics["loss:sum"] > 0
        assert raw.passing(model, 5).status_code == 200


def test_a_revoked_key_is_refused_at_once(raw: Raw, served: Any) -> None:
    from whet.hub.domain.accounts import DAY_S, add_account, issue
    from whet.hub.policy import Scope

    database, now = served.server.hub.database, served.server.hub.clock()
    with database.write() as session:
        eve = add_account(session, "eve", "user", "", now)
        token, key = issue(session, eve, "one", Scope.PUSH, DAY_S, now)
    own = Raw(served.url, "tml-" + key)
    model = own.model()
    assert own.answer(own.step(model, 1).json()["request_id"])["metrics"]
    with database.write() as session:
        session.get_one(type(token), token.id).revoked_at = now
    assert own.step(model, 2).status_code == 401
    assert own.post("/retrieve_future", request_id="x").status_code == 401


def test_what_cannot_be_written_is_alone_in_that(raw: Raw, served: Any) -> None:
    """Requests of one transaction: one that the database refuses, and one that is right."""
    import asyncio

    from whet.tinker.entry import Entering, LogEntry

    model = raw.model()

    async def both() -> list[Any]:
        entry = LogEntry(served.server)
        bad, good = (Entering("hub-admin", id, 1, "optim_step", b"{}") for id in ("\ud800", model))
        return await asyncio.gather(entry.put(bad), entry.put(good), return_exceptions=True)

    bad, good = asyncio.run(both())
    assert isinstance(bad, Exception)
    assert raw.answer(good)["error"]


def test_answers_are_in_the_database_too(raw: Raw, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.tinker.answer_box.KEPT_BYTES", 0)
    model = raw.model()
    passed, stepped = raw.passing(model, 1).json()["request_id"], raw.step(model, 2).json()["request_id"]
    assert raw.answer(passed).metrics["loss:sum"] > 0
    assert raw.answer(stepped)["metrics"]
