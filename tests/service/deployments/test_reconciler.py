"""What is in memory follows the rows: loaded, refused with the reason, unloaded, and the same after a restart."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from whet.clients.client import Delta
from whet.gateway.wire import TurnRequest


@pytest.fixture
def database_url() -> None:
    """SQLite: what differs on PostgreSQL is in the tests of access, use and the interface."""


def states(service: Any, user: str = "ann") -> dict[str, tuple[str, str]]:
    items = service.hub.ok("GET", "/deployments", user)["items"]
    return {one["model"].partition(":")[2]: (one["state"], one["reason"]) for one in items}


def test_adapters_share_one_base_and_answer_as_their_checkpoints_do(
    service: Any, deploying: Any, checkpoints: Path
) -> None:
    run, full = service.run(), service.run(kind="full", name="all weights")
    for step in (2, 4):
        service.deploy("ann", run, step=step)
    service.deploy("ann", full)

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            names = ("words-2", "words-4", "all-weights-3")
            answers = await asyncio.gather(*(serving.ask("ann", f"whet/tiny:{name}") for name in names))
            return answers, len(serving.loads)

    answers, loads = asyncio.run(go())
    assert answers == [deploying.ids_of(checkpoints / name) for name in ("merged_2", "merged_4", "whole_3")]
    assert loads == 2  # the base once for both adapters, and the model with its own weights
    assert states(service) == dict.fromkeys(["words-2", "words-4", "all-weights-3"], ("ready", ""))


def test_a_deployment_outlives_its_checkpoint_and_its_run(service: Any, deploying: Any, checkpoints: Path) -> None:
    run = service.run()
    service.deploy("ann", run, name="kept")
    shutil.rmtree(service.data / "runs" / run)  # before anything was exported

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            return await serving.ask("ann", "whet/tiny:kept")

    assert asyncio.run(go()) == deploying.ids_of(checkpoints / "merged_4")


def test_what_was_ready_is_ready_after_a_restart_and_its_first_request_does_not_wait_for_a_comparison(
    service: Any, deploying: Any, checkpoints: Path
) -> None:
    service.deploy("ann", service.run(), name="a")

    async def first() -> None:
        async with service.serving() as serving:
            await serving.reconcile()

    async def second() -> Any:
        async with service.serving() as serving:
            await serving.deployments.reconcile()  # nothing is loaded yet
            return await serving.ask("ann", "whet/tiny:a"), serving.deployments.known

    asyncio.run(first())
    answer, [known] = asyncio.run(second())
    assert answer == deploying.ids_of(checkpoints / "merged_4")
    assert known.state == "ready"


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()  # the run's own file, which is linked, stays as it is
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: damage(folder / "checkpoint" / "adapter.safetensors"), "adapter.safetensors is damaged"),
        (lambda folder: (folder / "checkpoint" / "manifest.json").unlink(), "no manifest"),
        (lambda folder: shutil.rmtree(folder), "the files of the deployment are gone"),
    ],
)
def test_one_whose_files_are_missing_or_damaged_fails_with_the_reason(service: Any, spoil: Any, words: str) -> None:
    made = service.deploy("ann", service.run(), name="a")
    spoil(service.data / "deployments" / made["id"])

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            return await serving.ask("ann", "whet/tiny:a")

    assert asyncio.run(go()) == (503, "deployment_failed")
    state, reason = states(service)["a"]
    assert state == "failed"
    assert words in reason
    assert str(service.data) not in reason


@pytest.mark.parts
def test_weights_that_vanished_while_nothing_ran_are_found_at_the_start(service: Any) -> None:
    made = service.deploy("ann", service.run(), name="a")

    async def go(spoil: bool) -> None:
        if spoil:
            shutil.rmtree(service.data / "deployments" / made["id"] / "weights")
        async with service.serving() as serving:
            await serving.reconcile()

    asyncio.run(go(False))
    assert states(service)["a"][0] == "ready"
    asyncio.run(go(True))
    assert states(service)["a"][0] == "failed"


def test_an_adapter_of_another_base_and_a_base_in_the_folder_of_the_service_are_refused(
    service: Any, checkpoints: Path
) -> None:
    foreign = service.data / "deployments" / "0123456789abcdef" / "weights"
    shutil.copytree(checkpoints / "whole_3", foreign)
    service.deploy("ann", service.run(model=str(foreign)), name="a")
    service.deploy("ann", service.run(kind="full", model="no/such/model/here"), name="b")

    async def go() -> None:
        async with service.serving() as serving:
            await serving.reconcile()

    asyncio.run(go())
    found = states(service)
    assert "in the folder of the service" in found["a"][1]
    assert "there is no model directory" in found["b"][1]


def test_an_adapter_whose_checkpoint_is_gone_is_served_with_the_base_of_its_run(
    service: Any, deploying: Any, checkpoints: Path
) -> None:
    run = service.run()
    directory = service.data / "runs" / run / "run"
    shutil.rmtree(directory / "checkpoints" / "step_2")
    shutil.copytree(checkpoints / "adapters", directory / "adapters")
    described = directory / "adapters" / "step_2" / "adapter_config.json"
    named = json.loads(described.read_text()) | {"base_model_name_or_path": str(checkpoints / "whole_3")}
    described.write_text(json.dumps(named))
    service.deploy("ann", run, step=2, name="a")

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            return await serving.ask("ann", "whet/tiny:a")

    assert asyncio.run(go()) == deploying.ids_of(checkpoints / "merged_2")


@pytest.mark.parts
def test_a_base_that_is_elsewhere_after_a_restart_is_found_and_another_one_is_refused(
    service: Any, deploying: Any, checkpoints: Path
) -> None:
    made = service.deploy("ann", service.run(), name="a")
    weights = service.data / "deployments" / made["id"] / "weights"

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            return await serving.ask("ann", "whet/tiny:a")

    before = asyncio.run(go())
    config = weights / "adapter_config.json"
    moved = json.loads(config.read_text()) | {"base_model_name_or_path": "/where/it/was/before"}
    config.write_text(json.dumps(moved))
    assert asyncio.run(go()) == before
    config.write_text(json.dumps(moved))
    (weights.parent / "base.sha256").write_text("0" * 64)
    assert asyncio.run(go()) == (503, "deployment_failed")
    assert "another one than the adapter was trained on" in states(service)["a"][1]


@pytest.mark.parts
def test_an_adapter_whose_base_is_in_its_submission_is_served_whole(
    service: Any, deploying: Any, checkpoints: Path
) -> None:
    from whet.models.tiny import path as tiny

    run = service.run(model="models/own")
    shutil.copytree(tiny(), service.data / "runs" / run / "submission" / "models" / "own")
    made = service.deploy("ann", run)
    assert (made["model"], made["adapter"]) == ("own:words-4", False)

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            shutil.rmtree(service.data / "runs" / run)
            return await serving.ask("ann", "own:words-4")

    assert asyncio.run(go()) == deploying.ids_of(checkpoints / "merged_4")


def test_one_that_is_deleted_answers_what_is_pending_and_is_unloaded_then(
    service: Any, deploying: Any, checkpoints: Path
) -> None:
    run = service.run()
    ids = {step: service.deploy("ann", run, step=step)["id"] for step in (2, 4)}

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            [deployed] = [one for one in serving.deployments.known if one.id == ids[4]]
            begun = asyncio.Event()
            turn = TurnRequest("m", deploying.QUESTION)
            args = {"temperature": 0, "max_tokens": 12}

            def hear(delta: Delta) -> None:
                begun.set()

            pending = asyncio.create_task(deployed.client.get_response(turn.messages, "m", args, on_delta=hear))
            await begun.wait()
            service.hub.ok("DELETE", f"/deployments/{ids[4]}", "ann")
            await serving.deployments.reconcile()
            seen = await serving.ask("ann", "whet/tiny:words-4"), await serving.models("ann")
            answer = (await pending).message["tokens"]["completion_ids"]
            await serving.deployments.reconcile()
            engine = next(iter(serving.host._models.values())).policy.engine
            return answer, seen, engine.adapters, await serving.ask("ann", "whet/tiny:words-2")

    answer, seen, adapters, other = asyncio.run(go())
    assert answer == deploying.ids_of(checkpoints / "merged_4")
    assert seen == ((404, "model_not_found"), ["whet/tiny:words-2"])
    assert list(adapters) == [ids[2]]
    assert other == deploying.ids_of(checkpoints / "merged_2")
    assert not (service.data / "deployments" / ids[4]).exists()
    assert states(service) == {"words-2": ("ready", "")}
    assert service.row(ids[4]).state == "deleted"


@pytest.mark.parts
def test_one_that_is_made_during_an_answer_is_loaded_and_changes_nothing_of_it(
    service: Any, deploying: Any, checkpoints: Path
) -> None:
    run = service.run()
    service.deploy("ann", run, step=2)

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            pending = asyncio.create_task(serving.ask("ann", "whet/tiny:words-2", tokens=100, ignore_eos=True))
            service.deploy("ann", run, step=4)
            await serving.reconcile()
            return await serving.ask("ann", "whet/tiny:words-4"), await pending

    made, answered = asyncio.run(go())
    assert made == deploying.ids_of(checkpoints / "merged_4")
    assert answered == deploying.ids_of(checkpoints / "merged_2", 100)


def test_a_load_whose_request_is_cancelled_serves_the_next_one(service: Any) -> None:
    service.deploy("ann", service.run(), name="a")

    async def go() -> Any:
        async with service.serving(idle_s=60.0) as serving:
            await serving.reconcile()
            serving.now += 61
            await serving.deployments.reconcile()
            begun, go_on, load = threading.Event(), threading.Event(), serving.load

            def slowly(path: Path) -> Any:
                begun.set()
                assert go_on.wait(250)
                return load(path)

            serving.host.load = slowly
            first = asyncio.create_task(serving.ask("ann", "whet/tiny:a"))
            assert await asyncio.to_thread(begun.wait, 250)
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            second = asyncio.create_task(serving.ask("ann", "whet/tiny:a"))
            await asyncio.sleep(0)
            go_on.set()
            return isinstance(await second, list), len(serving.loads)

    assert asyncio.run(go()) == (True, 2)  # at first, and once again


@pytest.mark.parts
def test_a_deletion_during_an_export_leaves_nothing(service: Any) -> None:
    made = service.deploy("ann", service.run())

    async def go() -> None:
        async with service.serving() as serving:
            reached = asyncio.Event()

            async def export(folder: Any) -> None:
                reached.set()
                await asyncio.Event().wait()

            serving.deployments._export = export
            await serving.deployments.reconcile()
            await reached.wait()
            service.hub.ok("DELETE", f"/deployments/{made['id']}", "ann")
            await serving.reconcile()

    asyncio.run(go())
    assert service.row(made["id"]).state == "deleted"
    assert not (service.data / "deployments" / made["id"]).exists()


def test_a_model_that_is_not_used_is_unloaded_and_loaded_again_for_the_next_request(service: Any) -> None:
    service.deploy("ann", service.run(), name="a")

    async def go() -> Any:
        async with service.serving(idle_s=60.0) as serving:
            await serving.reconcile()
            before = await serving.ask("ann", "whet/tiny:a")
            [deployed] = serving.deployments.known
            serving.now += 61
            await serving.deployments.reconcile()
            idle = deployed.current_health().loaded, deployed.state
            after = await serving.ask("ann", "whet/tiny:a")
            return before == after, idle, deployed.current_health().loaded, len(serving.loads)

    assert asyncio.run(go()) == (True, (False, "ready"), True, 2)


def test_without_memory_one_fails_and_is_loaded_when_there_is_some(service: Any) -> None:
    service.deploy("ann", service.run(), name="a")
    free = 1000

    async def go() -> Any:
        nonlocal free
        async with service.serving(available=lambda: free) as serving:
            await serving.reconcile()
            failed = states(service)["a"]
            await serving.reconcile()  # not before a pause
            loads = len(serving.loads)
            free, serving.now = 1 << 40, serving.now + 31
            await serving.reconcile()
            return failed, loads, states(service)["a"], isinstance(await serving.ask("ann", "whet/tiny:a"), list)

    (state, reason), loads, later, answered = asyncio.run(go())
    assert (state, loads, later, answered) == ("failed", 0, ("ready", ""), True)
    assert "out of memory" in reason


@pytest.mark.parts
def test_an_idle_model_makes_room_for_one_that_is_wanted(service: Any) -> None:
    service.deploy("ann", service.run(), name="a")
    service.deploy("ann", service.run(kind="full"), name="b")

    async def go() -> Any:
        async with service.serving() as serving:
            await serving.reconcile()
            free = iter([0, 1 << 40, 0, 1 << 40, *[1 << 40] * 9])
            serving.host.available = lambda: next(free)
            serving.now += 10_000
            await serving.host.unload_idle(1.0)
            answers = [await serving.ask("ann", f"whet/tiny:{name}") for name in ("a", "b", "a")]
            return [isinstance(answer, list) for answer in answers], len(serving.loads)

    answers, loads = asyncio.run(go())
    assert answers == [False, True, True]  # nothing could be unloaded for the first
    assert loads == 4


def test_folders_without_a_row_are_removed_once_they_are_old(service: Any) -> None:
    made = service.deploy("ann", service.run())
    folder = service.data / "deployments"
    for name, age in (("a" * 16, 2 * 3600), ("b" * 16, 60)):
        (folder / name).mkdir()
        moment = (folder / name).stat().st_mtime - age
        os.utime(folder / name, (moment, moment))

    async def go() -> None:
        async with service.serving() as serving:
            await serving.reconcile()

    asyncio.run(go())
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {made["id"], "b" * 16}
