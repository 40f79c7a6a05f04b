"""What is saved, loaded, listed, copied and downloaded, through the SDK."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest


@pytest.fixture
def trained(client: Any, datum: Callable[..., Any]) -> tuple[Any, Callable[[Any], float]]:
    """A training client after some steps, and what the loss of a client's model is."""
    import tinker

    one = datum([1, 2, 3], target_tokens=[2, 3, 4], weights=[1.0, 1.0, 1.0])
    trainer = client.create_lora_training_client(
        base_model="whet/tiny", rank=4, seed=3, user_metadata={"name": "first"}
    ).result()
    for _ in range(3):
        trainer.forward_backward([one], "cross_entropy")
        trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)).result()
    return trainer, lambda other: other.forward([one], "cross_entropy").result(timeout=20).metrics["loss:sum"]


def step(trainer: Any, datum: Callable[..., Any]) -> None:
    import tinker

    one = datum([4, 5, 6], target_tokens=[5, 6, 7], weights=[1.0, 1.0, 1.0])
    trainer.forward_backward([one], "cross_entropy").result()
    trainer.optim_step(tinker.AdamParams(learning_rate=5e-3)).result()


def test_a_state_is_where_training_continues(client: Any, trained: Any, datum: Callable[..., Any]) -> None:
    trainer, loss = trained
    path = trainer.save_state("here", user_metadata={"why": "test"}).result().path
    assert path == f"tinker://{trainer.model_id}/weights/here"
    resumed = client.create_training_client_from_state_with_optimizer(path).result()
    weights = client.create_training_client_from_state(path).result()
    assert loss(resumed) == loss(weights) == loss(trainer)
    for one in (trainer, resumed, weights):
        step(one, datum)
    assert loss(resumed) == loss(trainer)
    assert loss(weights) != loss(trainer)  # its optimiser began anew


def test_loading_into_a_model(client: Any, trained: Any) -> None:
    import tinker

    trainer, loss = trained
    path = trainer.save_state("here").result().path
    other = client.create_lora_training_client(base_model="whet/tiny", rank=4, seed=9).result()
    with pytest.warns(FutureWarning):
        other.load_state(path).result()
    assert loss(other) == loss(trainer)
    smaller = client.create_lora_training_client(base_model="whet/tiny", rank=2).result()
    with pytest.warns(FutureWarning), pytest.raises(tinker.RequestFailedError, match="another rank"):
        smaller.load_state(path).result()


def test_names_are_kept_unless_overwritten(trained: Any, datum: Callable[..., Any], client: Any) -> None:
    import tinker

    trainer, loss = trained
    path = trainer.save_state("here").result().path
    with pytest.raises(tinker.RequestFailedError, match="exists"):
        trainer.save_state("here").result()
    with pytest.raises(tinker.RequestFailedError, match="is no name"):
        trainer.save_state("../../outside").result()
    step(trainer, datum)
    assert trainer.save_state("here", overwrite=True).result().path == path
    assert loss(client.create_training_client_from_state(path).result()) == loss(trainer)


def test_lists_and_times(served: Any, client: Any, trained: Any) -> None:
    import tinker

    trainer, _ = trained
    path = trainer.save_state("here", ttl_seconds=7200).result().path
    sampler = trainer.save_weights_for_sampler("there").result().path
    rest = tinker.RestClient(base_url=served.url, api_key=served.key)
    first, second = rest.list_checkpoints(trainer.model_id).result().checkpoints
    assert (first.checkpoint_id, first.checkpoint_type, first.tinker_path) == ("weights/here", "training", path)
    assert first.expires_at is not None
    assert first.size_bytes > 0
    assert (second.checkpoint_id, second.expires_at) == ("sampler_weights/there", None)
    assert [one.tinker_path for one in rest.list_user_checkpoints().result().checkpoints] == [sampler, path]
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert rest.list_checkpoints(trainer.model_id).result().checkpoints[0].expires_at is None
    run = rest.get_training_run(trainer.model_id).result()
    assert (run.base_model, run.lora_rank, run.model_owner) == ("whet/tiny", 4, "hub-admin")
    assert run.user_metadata == {"name": "first"}
    assert run.last_checkpoint.tinker_path == path
    assert rest.get_training_run_by_tinker_path(path).result() == run
    runs = rest.list_training_runs(limit=1).result()
    assert (runs.training_runs, runs.cursor.total_count) == ([run], 1)
    info = rest.get_weights_info_by_tinker_path(path).result()
    assert (info.base_model, info.lora_rank, info.train_mlp) == ("whet/tiny", 4, True)
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert len(rest.list_checkpoints(trainer.model_id).result().checkpoints) == 1
    with pytest.raises(tinker.NotFoundError):
        rest.get_weights_info_by_tinker_path(path).result()
    with pytest.raises(tinker.RequestFailedError, match="in 3600 to"):
        trainer.save_state("short", ttl_seconds=10).result()


def test_expired_states_are_removed(served: Any, trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whet.tinker.trainer.TIDY_S", 0.0)
    trainer, _ = trained
    trainer.save_state("here", ttl_seconds=3600).result()
    assert len(list(served.server.states.iterdir())) == 1
    monkeypatch.setattr(served.server.hub, "clock", lambda: time.time() + 4000)
    deadline = time.monotonic() + 10
    while list(served.server.states.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(served.server.states.iterdir()) == []


def test_sessions_are_listed_and_searched(served: Any) -> None:
    import tinker
    from tinker import types
    from tinker.lib.experimental import ExperimentalWarning

    clients, trainers = [], []
    for name in ("blue run", "red run"):
        one = tinker.ServiceClient(
            base_url=served.url, api_key=served.key, display_name=name, user_metadata={"colour": name.split()[0]}
        )
        trainers.append(one.create_lora_training_client(base_model="whet/tiny", rank=1).result())
        clients.append(one)
    blue, red = (one.holder.get_session_id() for one in clients)
    rest = tinker.RestClient(base_url=served.url, api_key=served.key)
    assert rest.list_sessions().result().sessions == [red, blue]
    assert rest.get_session(blue).result().training_run_ids == [f"{blue}:train:0"]
    clients[1].close("errored").result()

    def search(**how: Any) -> list[str]:
        with pytest.warns(ExperimentalWarning):
            answer = rest.search_sessions(types.SessionSearchRequest(**how)).result()
        return [one.session_id for one in answer.sessions]

    assert search() == [red, blue]
    assert search(display_name="RUN blue") == [blue]
    assert search(user_metadata={"colour": "red"}) == [red]
    assert search(statuses=[{"type": "active"}]) == [blue]
    assert search(statuses=[{"type": "client_finished", "reasons": ["errored"]}]) == [red]
    rest.assign_session_project(blue, "paint").result()
    assert search(project_ids=["paint"]) == [blue]
    trainers[0].save_state("kept").result()
    assert rest.get_current_checkpoint_storage_usage("wood").result().data == []
    (usage,) = rest.get_current_checkpoint_storage_usage().result().data
    assert (usage.project_id, usage.checkpoint_count) == ("paint", 1)
    assert usage.size_bytes == rest.list_checkpoints(trainers[0].model_id).result().checkpoints[0].size_bytes
    with pytest.warns(ExperimentalWarning):
        first = rest.search_sessions(types.SessionSearchRequest(limit=1)).result()
    assert search(cursor=first.next_cursor) == [blue]
    clients[0].close("success").result()


def test_another_user_reads_what_is_published(served: Any, client: Any, trained: Any) -> None:
    import tinker

    from whet.hub.domain.accounts import DAY_S, add_account, issue
    from whet.hub.policy import Scope

    trainer, loss = trained
    path = trainer.save_state("here").result().path
    with served.server.hub.database.write() as session:
        now = served.server.hub.clock()
        token = issue(session, add_account(session, "eve", "user", "", now), "one", Scope.PUSH, DAY_S, now)[1]
    eve = tinker.ServiceClient(base_url=served.url, api_key=f"tml-{token}")
    with pytest.raises(tinker.NotFoundError):
        eve.create_training_client_from_state(path).result()
    with pytest.raises(tinker.NotFoundError):
        tinker.RestClient(base_url=served.url, api_key=f"tml-{token}").list_checkpoints(trainer.model_id).result()
    tinker.RestClient(base_url=served.url, api_key=served.key).publish_checkpoint_from_tinker_path(path).result()
    assert loss(eve.create_training_client_from_state(path).result()) == loss(trainer)
    copied = tinker.RestClient(base_url=served.url, api_key=f"tml-{token}").copy_weights(path, "hers").result()
    with pytest.raises(tinker.NotFoundError):
        tinker.RestClient(base_url=served.url, api_key=f"tml-{token}").delete_checkpoint_from_tinker_path(path).result()
    tinker.RestClient(base_url=served.url, api_key=served.key).unpublish_checkpoint_from_tinker_path(path).result()
    tinker.RestClient(base_url=served.url, api_key=served.key).delete_checkpoint_from_tinker_path(path).result()
    assert loss(eve.create_training_client_from_state(copied).result()) == loss(trainer)
    eve.close("success").result()


def test_downloads_are_a_peft_directory(served: Any, trained: Any) -> None:
    import tinker

    trainer, _ = trained
    path = trainer.save_weights_external("out").result().path
    links = tinker.RestClient(base_url=served.url, api_key=served.key).get_external_weights_urls(path).result()
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= set(links.urls)
    assert httpx.get(links.urls["adapter_config.json"]).json()["r"] == 4
    url = links.urls["adapter_config.json"]
    assert httpx.get(url[:-4] + "AAAA").status_code == 404
    sampler = trainer.save_weights_for_sampler("out").result().path
    name = sampler.removeprefix(f"tinker://{trainer.model_id}/")
    archive = httpx.get(
        f"{served.url}/api/v1/training_runs/{trainer.model_id}/checkpoints/{name}/archive",
        headers={"X-API-Key": served.key},
    )
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as file:
        assert "./adapter_config.json" in file.getnames()
    assert path.endswith("external_weights/out")
    deadline = time.monotonic() + 10  # the server removes it after the last byte
    while list(served.server.states.glob("*.partial")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not list(served.server.states.glob("*.partial"))


def test_what_is_not_here_is_named(served: Any, client: Any, trained: Any) -> None:
    import tinker

    trainer, _ = trained
    with pytest.raises(tinker.RequestFailedError, match="does not sample"):
        trainer.save_weights_and_get_sampling_client().result()
    with pytest.raises(tinker.RequestFailedError, match="does not encrypt"):
        trainer.save_weights_external("x", age_encryption_recipients=["age1"]).result()
    with pytest.raises(tinker.NotFoundError, match="no traces of sessions"):
        tinker.RestClient(base_url=served.url, api_key=served.key).export_session_trace("x").result()
