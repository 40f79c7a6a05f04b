"""`whet env serve --as nemo-gym`: NeMo-Gym's gymnasium protocol; with its own agent in `test_nemo_gym.py`."""

import json

import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

import whet
from whet.integrations import nemo_server
from whet.integrations.nemo_server import NemoGymApp


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


class Twice(whet.ToolEnv):
    """Asks once more after the first answer."""

    async def env_response(self, messages, state, **kwargs):
        if messages[-1].get("tool_calls"):
            return await super().env_response(messages, state)
        if messages[-1]["content"] == "raise":
            raise RuntimeError("broken")
        return [whet.UserMessage("sure?")]

    @whet.stop
    async def no_tools_called(self, state):
        return len(state["trajectory"]) > 2


def environment():
    def right(completion, answer):
        return float(completion[-1]["content"] == answer)

    rows = [{"question": name, "answer": name} for name in "ab"]
    return Twice(tools=[add], dataset=rows, rubric=whet.Rubric(funcs=[right]), system_prompt="Add.")


@pytest.fixture
def web():
    with TestClient(NemoGymApp(environment(), sessions=2).app, base_url="http://localhost") as client:
        yield client


def rows_of(web, split="train"):
    return [json.loads(line) for line in web.get(f"/rows/{split}.jsonl").text.splitlines()]


def said(text):
    return {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def called(number, **arguments):
    name = {"type": "function_call", "call_id": f"mine{number}", "name": "add"}
    return {**name, "arguments": json.dumps(arguments)}


def step(web, *items):
    return web.post("/step", json={"response": {"output": list(items)}})


def test_rows_hold_the_conversation_and_the_tools(web):
    rows = rows_of(web)
    params = rows[1]["responses_create_params"]
    assert [item["content"] for item in params["input"]] == ["Add.", "b"]
    assert [tool["name"] for tool in params["tools"]] == ["add"]
    assert [row["whet"] for row in rows] == [{"seed": 0, "split": "train"}, {"seed": 1, "split": "train"}]
    assert web.get("/rows/all.jsonl").status_code == 404


def test_an_episode_has_tools_turns_and_the_reward_of_the_rubric(web):
    assert web.post("/reset", json=rows_of(web)[1]).json() == {"observation": None, "info": {}}
    both = step(web, said("wait"), called(0, a=1, b=2), called(1, a="x")).json()
    outputs = both["info"]["tool_outputs"]
    assert [output["call_id"] for output in outputs] == ["mine0", "mine1"]
    assert outputs[0]["output"] == "3"
    assert "x" in outputs[1]["output"]
    assert (both["observation"], both["reward"], both["terminated"]) == (None, 0.0, False)
    again = step(web, said("b")).json()
    assert (again["observation"], again["terminated"]) == ("sure?", False)
    last = step(web, said("b")).json()
    assert (last["reward"], last["terminated"]) == (1.0, True)
    assert step(web, said("b")).status_code == 409


def test_an_episode_that_fails_is_an_error_and_no_reward(web):
    web.post("/reset", json=rows_of(web)[0])
    step(web, said("hm"))
    web.post("/reset", json=rows_of(web)[0])
    failed = step(web, said("raise"))
    assert failed.status_code == 500
    assert "broken" in failed.json()["error"]


def test_sessions_are_limited_and_idle_ones_are_ended(web, monkeypatch):
    row = rows_of(web)[0]
    for _ in range(2):
        assert web.post("/reset", json=row).status_code == 200
        web.cookies.clear()
    assert web.post("/reset", json=row).status_code == 503
    monkeypatch.setattr(nemo_server, "IDLE_S", 0.0)
    assert web.post("/reset", json=row).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/reset", {}, "has no 'whet'"),
        ("/reset", {"whet": {"seed": -1}}, "has no 'whet'"),
        ("/reset", {"whet": {"seed": 0}}, "responses_create_params should be an object"),
        ("/reset", {"whet": {"seed": 0}, "responses_create_params": {"input": "a"}}, "should be lists"),
        ("/reset", {"whet": {"seed": 0}, "responses_create_params": {"input": []}}, "lacks tools"),
        (
            "/reset",
            {"whet": {"seed": 0}, "responses_create_params": {"input": [{"role": "user", "content": "z"}]}},
            "not that of this environment",
        ),
        ("/reset", [], "a JSON object"),
        ("/step", {"response": {"output": []}}, "send /reset first"),
        ("/aggregate_metrics", {"verify_responses": [{}]}, "with a reward"),
    ],
)
def test_what_is_malformed_is_refused(web, path, body, says):
    answer = web.post(path, json=body)
    assert 400 <= answer.status_code < 500
    assert says in answer.json()["error"]


@pytest.mark.parametrize("output", [None, [], [1], [said("a"), {"type": "x"}], [{"role": "user", "content": "a"}]])
def test_what_is_no_turn_is_refused_and_the_episode_goes_on(web, output):
    web.post("/reset", json=rows_of(web)[0])
    assert web.post("/step", json={"response": {"output": output}}).status_code == 400
    assert step(web, said("a")).status_code == 200


def test_a_page_of_a_browser_is_refused(web):
    answer = web.post("/reset", json=rows_of(web)[0], headers={"origin": "http://elsewhere"})
    assert answer.status_code == 403
