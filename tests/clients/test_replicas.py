"""Several endpoints as one client; see `whet.clients.make`."""

import asyncio

import pytest

import whet
from whet.clients.make import LONGEST_REST_S, REST_S, ReplicaClient
from whet.errors import ConfigError, EndpointDownError, EndpointError, ModelError
from whet.types import UserMessage


class Replica(whet.ScriptedClient):
    """Answers with its name, unless it is set to fail."""

    def __init__(self, name: str) -> None:
        super().__init__(self.answer)
        self.base_url = name
        self.failure: Exception | None = None
        self.asked = 0

    def answer(self, prompt: object) -> str | Exception:
        self.asked += 1
        return self.failure or self.base_url


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def replicas():
    return [Replica(name) for name in "abc"]


@pytest.fixture
def clock():
    return Clock()


def ask(client, task=None, rollout="r"):
    state = None
    if task is not None:
        state = whet.State(input={"example_id": task, "prompt": []}, trajectory=[], trajectory_id=rollout)
    response = asyncio.run(client.get_response([UserMessage("hi")], "m", {}, state=state))
    return response.message.content


def test_requests_take_the_replicas_in_turn(replicas, clock):
    client = ReplicaClient(replicas, clock)
    assert [ask(client) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_the_rollouts_of_a_task_stay_with_one_replica(replicas, clock):
    client = ReplicaClient(replicas, clock)
    assert [ask(client, task, f"{task}-{place}") for task in range(3) for place in range(2)] == list("aabbcc")


def test_a_task_is_forgotten_with_its_last_rollout(replicas, clock):
    client = ReplicaClient(replicas, clock)
    assert [ask(client, 0, "first"), ask(client, 0, "second")] == ["a", "a"]
    for rollout, replica in (("first", "a"), ("second", "b")):
        asyncio.run(client.release(whet.State(input={"example_id": 0}, trajectory_id=rollout)))
        assert ask(client, 0, "second") == replica


def test_another_answers_for_one_that_is_down(replicas, clock):
    client = ReplicaClient(replicas, clock)
    replicas[0].failure = EndpointDownError("no route")
    assert [ask(client) for _ in range(4)] == ["b", "b", "c", "b"]
    assert replicas[0].asked == 1


def test_a_rested_replica_is_asked_again_and_rests_longer_each_time(replicas, clock):
    client = ReplicaClient(replicas[:2], clock)
    replicas[0].failure = EndpointDownError("no route")

    def pause() -> float:
        """Seconds until the replica is tried again."""
        before, asked = clock.now, replicas[0].asked
        while replicas[0].asked == asked:
            clock.now += 1
            ask(client, "the task of a", "r")
        return clock.now - before

    pause()
    pauses = [pause() for _ in range(7)]
    assert pauses[:4] == [REST_S, 2 * REST_S, 4 * REST_S, 8 * REST_S]
    assert pauses[-1] == LONGEST_REST_S
    replicas[0].failure = None
    clock.now += LONGEST_REST_S
    assert ask(client, "the task of a", "r") == "a"
    replicas[0].failure = EndpointDownError("no route")
    assert ask(client, "the task of a", "r") == "b"
    assert pause() == REST_S


def test_when_nobody_else_answers_the_first_whose_rest_is_over_is_asked_anyway(replicas, clock):
    client = ReplicaClient(replicas[:2], clock)
    replicas[0].failure = EndpointDownError("no route")
    assert ask(client) == "b"
    clock.now += 1
    replicas[0].failure = None
    replicas[1].failure = EndpointDownError("no route")
    assert ask(client) == "a"


def test_when_none_answers_the_error_says_so(replicas, clock):
    client = ReplicaClient(replicas[:2], clock)
    for replica in replicas[:2]:
        replica.failure = EndpointDownError("no route")
    with pytest.raises(EndpointDownError, match=r"none of 2 replicas answers.*no route"):
        ask(client)


@pytest.mark.parametrize("failure", [ModelError("bad request"), EndpointError("no key")])
def test_what_another_replica_would_not_mend_is_raised_at_once(replicas, clock, failure):
    client = ReplicaClient(replicas, clock)
    replicas[0].failure = failure
    with pytest.raises(type(failure)):
        ask(client)
    assert [replica.asked for replica in replicas] == [1, 0, 0]


def test_there_has_to_be_an_endpoint():
    with pytest.raises(ConfigError, match="no endpoint"):
        ReplicaClient([])
