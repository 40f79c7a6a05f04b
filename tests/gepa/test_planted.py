"""The planted task is what it says it is: tests that search it rest on this."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from planted.policy import answer
from planted.reflection import Proposer, current_text
from planted.server import Endpoint, Trouble
from planted.world import SEED_PROMPT, SENTENCES, World, answer_of, sentences_in

import whet
from whet.gepa.reflection.prompt import write_request
from whet.gepa.reflection.rollout_records import make_records
from whet.gepa.types import RolloutCall, Scored

pytest.importorskip("openai")

PLACE = Path(__file__).parent / "planted"
WORLD = World.of(0)
BEST = "\n".join([SEED_PROMPT, *sorted(WORLD.best)])


def reward(endpoint: Endpoint, number: int = 80, **arguments: object) -> float:
    env = whet.load_environment(str(PLACE), **arguments)
    client = whet.ClientConfig(api_base_url=endpoint.url, api_key_var="WHET_TEST_KEY")
    return env.evaluate_sync(client, "policy", num_examples=number, max_concurrent=32)["metadata"]["avg_reward"]


def test_no_prompt_near_the_best_one_is_better() -> None:
    assert WORLD.mean(SEED_PROMPT) == pytest.approx(0.25)
    assert WORLD.mean(BEST) == pytest.approx(0.95)
    for sentence in SENTENCES:
        other = BEST.replace(sentence, "") if sentence in BEST else f"{BEST}\n{sentence}"
        assert WORLD.mean(other) <= WORLD.mean(BEST) + 1e-9


@pytest.mark.parametrize("tool", [False, True], ids=["answering", "by a tool"])
def test_the_policy_is_as_good_as_its_prompt(tool: bool) -> None:
    with Endpoint(partial(answer, WORLD)) as endpoint:
        assert reward(endpoint, tool=tool) == pytest.approx(0.25, abs=0.15)
        assert reward(endpoint, tool=tool, system_prompt=BEST) == pytest.approx(0.95, abs=0.08)


def test_the_policy_says_the_same_to_the_same_request_and_seed() -> None:
    (row,) = WORLD.rows("eval", 1)
    messages = [{"role": "system", "content": SEED_PROMPT}, {"role": "user", "content": row["question"]}]
    said = [
        answer(WORLD, {"messages": messages, "seed": seed}, number)["content"]
        for seed in (1, 1, 2)
        for number in (0, 7)
    ]
    assert len(set(said[:4])) == 1
    many = [answer(WORLD, {"messages": messages}, number)["content"] == row["answer"] for number in range(400)]
    assert sum(many) / 400 == pytest.approx(0.25, abs=0.08)
    assert row["answer"] == answer_of(row["question"])


def request(current: str) -> str:
    row = {"prompt": [{"role": "user", "content": one["question"]} for one in WORLD.rows("train", 3)], "completion": []}
    scored = [Scored(RolloutCall("c", "train/planted/0", 0), 0.0, None, row)]
    records = make_records(scored, "system_prompt", ())
    return write_request("system_prompt", current, records, most=200, room=8000)


def test_the_reflection_model_changes_one_sentence_and_keeps_the_rest() -> None:
    first = f"{SEED_PROMPT}\n{SENTENCES[0]}"
    assert current_text(request(first)) == first
    proposer = Proposer(useless=0.0)
    for number in range(50):
        body = {"messages": [{"role": "user", "content": request(first)}]}
        text = proposer.answer(body, number)["content"].split("<new_text>\n")[1].split("\n</new_text>")[0]
        assert text.startswith(SEED_PROMPT)
        assert 1 <= len(set(sentences_in(text)) ^ set(sentences_in(first))) <= 2


def test_the_reflection_model_reads_what_plain_gepa_asks() -> None:
    asked = f"I provided an assistant with instructions:\n```\n{SEED_PROMPT}\n```\nRecord 5 (dates): what does it say?"
    proposed = Proposer(insight=1.0, useless=0.0).answer({"messages": [{"role": "user", "content": asked}]}, 0)
    assert proposed["content"] == f"```\n{SEED_PROMPT}\nWrite dates as year, month, day.\n```"


def test_as_many_answers_as_are_asked_for_are_of_no_use() -> None:
    body = {"messages": [{"role": "user", "content": request(SEED_PROMPT)}]}
    said = [Proposer(useless=0.5, useless_as=("refused",)).answer(body, number) for number in range(200)]
    assert sum(one is None for one in said) / 200 == pytest.approx(0.5, abs=0.1)


def test_bursts_and_failures_come_where_they_were_asked_for() -> None:
    trouble = Trouble(busy_every=4, busy_for=2, refuse_after=10)
    assert [trouble.status(number) for number in range(12)] == [*[200] * 4, 429, 429, *[200] * 4, 401, 401]
    assert [Trouble(fail_every=3).status(number) for number in range(6)] == [200, 200, 500, 200, 200, 500]


def test_an_evaluation_goes_through_bursts_and_failures() -> None:
    with Endpoint(partial(answer, WORLD), trouble=Trouble(busy_every=20, busy_for=3, fail_every=15)) as endpoint:
        assert reward(endpoint, 60, system_prompt=BEST) > 0.8
        assert endpoint.asked > len(endpoint.requests) == 60


def test_an_endpoint_can_be_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "planted", "policy", "--seed", "0"]
    env = {**os.environ, "PYTHONPATH": str(PLACE.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        try:
            url = process.stdout.readline().strip()
            client = whet.ClientConfig(api_base_url=url, api_key_var="WHET_TEST_KEY")
            best = whet.load_environment(str(PLACE), system_prompt=BEST)
            assert best.evaluate_sync(client, "policy", num_examples=20)["metadata"]["avg_reward"] > 0.6
        finally:
            process.send_signal(signal.SIGTERM)
