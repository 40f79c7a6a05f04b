"""Requests that no client sends, to every route: none is an error of the server, none reads what is another user's."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

SECRET = "only-of-the-administrator"
VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 2**31, 2**63, 2**70, -(2**40), 0.5, 1e308, "", "x", "tinker://a/b/c", "../../etc/passwd"),
    *("\x00", "\ud800", "a" * 5000, [], {}, [[]], {"type": "adamw"}, {"type": "active"}, ["x"], {"rank": 1}),
    *(
        {"a": "\ud800"},
        {"a": "\x00"},
        ["\ud800"],
        {"rank": -1},
        {"rank": 10**9, "seed": 2**80},
        {"learning_rate": "nan"},
        {"learning_rate": 1e300, "beta1": 7},
    ),
]
FIELDS = {
    "create_model": "session_id model_seq_id base_model lora_config optimizer_config user_metadata",
    "optim_step": "model_id seq_id adam_params",
    "load_weights": "path optimizer model_id session_id model_seq_id",
    "save_weights": "path ttl_seconds overwrite model_id seq_id",
    "save_weights_external": "path ttl_seconds model_id seq_id",
    "create_session": "tags user_metadata sdk_version project_id display_name",
    "search": "limit cursor owner statuses user_metadata",
    "copy_weights": "source_path destination_project_id ttl_seconds session_id model_seq_id",
    "retrieve_future": "request_id",
    "weights_info": "tinker_path",
    "session_heartbeat": "session_id",
    "finish": "reason detail",
    "project": "project_id",
    "ttl": "ttl_seconds",
    "get_info": "model_id",
    "unload_model": "model_id",
}
USUAL: dict[str, Any] = {
    **{"model_seq_id": 3, "base_model": "whet/tiny", "lora_config": {"rank": 2}, "adam_params": {}, "optimizer": True},
    **{"tags": [], "user_metadata": {"a": "b"}, "sdk_version": "0", "optimizer_config": {"type": "adamw"}, "seq_id": 1},
    **{"reason": {"type": "success"}, "limit": 3, "owner": {"type": "own"}, "overwrite": True, "ttl_seconds": 4000},
}


@pytest.mark.parametrize(
    "count", [500, pytest.param(4_000, marks=pytest.mark.parts), pytest.param(20_000, marks=pytest.mark.long)]
)
def test_nothing_breaks_and_nothing_leaks(served: Any, client: Any, datum: Callable[..., Any], count: int) -> None:
    from whet.hub.domain.accounts import DAY_S, add_account, issue
    from whet.hub.policy import Scope
    from whet.tinker.api.app import ROUTERS

    trainer = client.create_lora_training_client(base_model="whet/tiny", user_metadata={"said": SECRET}).result()
    path = trainer.save_state("here").result().path
    one = datum([1, 2], target_tokens=[2, 3], weights=[1.0, 1.0])
    expected = trainer.forward([one], "cross_entropy").result().metrics
    with served.server.hub.database.write() as session:
        now = served.server.hub.clock()
        token = issue(session, add_account(session, "eve", "user", "", now), "one", Scope.PUSH, DAY_S, now)[1]
    chance = random.Random(count)
    routes = [(route.path, sorted(route.methods)[0]) for router in ROUTERS for route in router.routes]
    own = httpx.Client(base_url=served.url, headers={"X-API-Key": f"tml-{token}"}, timeout=30)
    mine = own.post("/api/v1/create_session", json={"tags": [], "user_metadata": None, "sdk_version": "0"}).json()
    ids = [trainer.model_id, trainer.model_id.split(":")[0], path, mine["session_id"], "weights", "here", "%2e%2e"]
    for i in range(count):
        route, method = routes[i % len(routes)]
        url = "/".join(str(chance.choice(ids)) if part.startswith("{") else part for part in route.split("/"))
        kind = chance.random()
        if kind < 0.2:
            body = chance.randbytes(chance.randrange(200))
        else:
            names = FIELDS.get(route.rpartition("/")[2], "").split()
            usual = {**USUAL, "session_id": mine["session_id"], "model_id": mine["session_id"] + ":train:3"}
            hostile = {name: chance.choice([*VALUES, *ids]) for name in names}
            kept = {name: usual[name] for name in names if name in usual and chance.random() < 0.7}
            body = json.dumps({**hostile, **kept}).encode()
        if route.endswith("forward_backward") and kind > 0.3:
            body = _mutated(chance, trainer.model_id)
        query = {
            chance.choice(["limit", "offset", "of", "project_id"]): chance.choice(["-1", "1e9", "x", "99999999999"])
        }
        try:
            answer = own.request(method, url, content=body, params=query if chance.random() < 0.3 else None)
        except httpx.InvalidURL:
            continue
        assert answer.status_code < 500, (method, url, body, answer.text)
        assert SECRET not in answer.text, (method, url, body)
    assert trainer.forward([one], "cross_entropy").result(timeout=60).metrics == expected


def _mutated(chance: random.Random, model: str) -> bytes:
    from tinker.proto import tinker_public_pb2 as pb

    message = pb.ForwardBackwardRequest(model_id=model, seq_id=chance.randrange(1, 99), loss_fn="cross_entropy")
    one = message.data.add()
    one.model_input.add().encoded_text.tokens = np.array([1, 2], np.int32).tobytes()
    one.loss_fn_inputs["target_tokens"].dense = np.array([1, 2]).tobytes()
    body = bytearray(message.SerializeToString())
    for _ in range(chance.randrange(1, 4)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    return bytes(body)
