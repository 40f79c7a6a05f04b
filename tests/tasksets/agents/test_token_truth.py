"""What programs do to a conversation over HTTP, and what is trained: each sampled token once, as it was sampled."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest

SYSTEM, SUB = {"role": "system", "content": "You work."}, {"role": "system", "content": "You look things up."}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"type": "object"}}}
    for name in ("bash", "read")
]


def user(text: str) -> dict:
    return {"role": "user", "content": text}


class Caller:
    """A client of a rollout's chat completions that does nothing but send and receive."""

    def __init__(self, config: dict) -> None:
        self._address, self._key = urlsplit(config["base_url"]), config["api_key"]

    async def post(
        self, messages: list, *, tools: list | None = None, stream: bool = False, leave: asyncio.Event | None = None
    ):
        """The model's message; None where it hangs up when `leave` is set."""
        body = {"model": "any", "messages": messages, "stream": stream, **({"tools": tools} if tools else {})}
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        head = f"POST {self._address.path}/chat/completions HTTP/1.1\r\nHost: {self._address.netloc}\r\n"
        head += f"Authorization: Bearer {self._key}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        try:
            if leave is not None:
                await leave.wait()
                return None
            answer = await reader.read()
        finally:
            writer.close()
        return json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["message"]


class Hold:
    """Keeps the first request from being answered until its client has gone."""

    def __init__(self) -> None:
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()


def driven(attempt, drive, texts):
    """A rollout whose program is `drive(caller)`."""

    async def program(state):
        await drive(Caller(state.get_endpoint_config()))

    return attempt(program, texts)


def test_parallel_requests_are_each_a_turn(attempt) -> None:
    async def drive(caller) -> None:
        first = [SYSTEM, user("Begin.")]
        first.append(await caller.post(first))
        await asyncio.gather(*(caller.post([*first, user(f"Part {part}.")]) for part in range(4)))

    tried = driven(attempt, drive, ["one", "two", "three", "four", "five"])
    assert tried.state["error"] is None
    assert tried.differing_tokens() == 0
    assert sorted(len(branch.turns) for branch in tried.branches) == [1, 1, 1, 2]


def test_sub_agents_of_other_system_prompts_are_conversations_of_their_own(attempt) -> None:
    async def drive(caller) -> None:
        main, sub = [SYSTEM, user("Begin.")], [SUB, user("Look.")]
        for turn in range(3):
            for conversation in (main, sub):
                conversation += [await caller.post(conversation), user(f"Go on {turn}.")]

    tried = driven(attempt, drive, [f"answer {number}" for number in range(6)])
    assert tried.state["error"] is None
    assert tried.differing_tokens() == 0
    assert [[number for number, _, _ in branch.turns] for branch in tried.branches] == [[0, 2, 4], [1, 3, 5]]


def test_same_request_again_is_a_turn_of_its_own(attempt) -> None:
    async def drive(caller) -> None:
        first = [SYSTEM, user("Begin.")]
        await caller.post(first)
        first += [await caller.post(first), user("Go on.")]
        await caller.post(first)

    tried = driven(attempt, drive, ["once", "again", "then"])
    assert tried.differing_tokens() == 0
    assert [[number for number, _, _ in branch.turns] for branch in tried.branches] == [[0], [1, 2]]


def test_compaction_trains_the_summary_and_what_follows_it(attempt) -> None:
    async def drive(caller) -> None:
        long = [SYSTEM, user("Begin.")]
        long += [await caller.post(long), user("Go on.")]
        long += [await caller.post(long), user("Summarise.")]
        summary = await caller.post(long)
        await caller.post([SYSTEM, user(f"So far: {summary['content']}"), user("Go on.")])

    tried = driven(attempt, drive, ["a", "b", "the summary", "c"])
    assert tried.differing_tokens() == 0
    assert [[number for number, _, _ in branch.turns] for branch in tried.branches] == [[0, 1, 2], [3]]


def test_other_tools_are_another_prompt(attempt, called) -> None:
    async def drive(caller) -> None:
        messages = [SYSTEM, user("Begin.")]
        for tools in (TOOLS[:1], TOOLS[:1], TOOLS, TOOLS):
            answer = await caller.post(messages, tools=tools)
            results = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in answer["tool_calls"]]
            messages += [answer, *results]

    tried = driven(attempt, drive, [called("bash", command=f"echo {number}") for number in range(4)])
    assert tried.state["error"] is None
    assert tried.differing_tokens() == 0
    assert [[number for number, _, _ in branch.turns] for branch in tried.branches] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("stream", [False, True])
def test_request_that_is_cancelled_while_it_is_sampled_is_not_trained(attempt, stream) -> None:
    hold = Hold()

    async def program(state) -> None:
        caller, messages = Caller(state.get_endpoint_config()), [SYSTEM, user("Begin.")]
        await caller.post(messages, stream=stream, leave=hold.begun)
        while state.session.waiting:
            await asyncio.sleep(0)
        hold.go_on.set()
        messages += [await caller.post(messages), user("Go on.")]
        await caller.post(messages)

    tried = attempt(program, ["never seen", "seen", "after"], hold)
    assert tried.state["error"] is None
    assert tried.state["num_abandoned_requests"] == 1
    assert tried.left_out == {0}
    assert tried.differing_tokens() == 0
    assert [[number for number, _, _ in branch.turns] for branch in tried.branches] == [[0], [1, 2]]


ASKING = """import json, os, urllib.request
TASK, TITLE = "You work.", "You write titles. Four words."
def ask(model, system, *texts):
    messages = [{"role": "system", "content": system}, *({"role": "user", "content": text} for text in texts)]
    body = json.dumps({"model": model, "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, headers)).read()
for model, system in (("policy", TASK), ("small-1", TASK), ("policy", TITLE), ("policy", TASK)):
    ask(model, system, "Begin.")
"""


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize(
    ("patterns", "left_out"),
    [
        ({}, set()),
        ({"helper_models": ["small-*"]}, {1}),
        ({"helper_prompts": ["You write titles.*"]}, {2}),
        ({"helper_models": ["small-?"], "helper_prompts": ["*titles*"]}, {1, 2}),
        ({"helper_models": ["small"], "helper_prompts": ["titles"]}, set()),
    ],
)
def test_requests_of_helpers_are_recorded_and_not_trained(attempt, patterns, left_out) -> None:
    tried = attempt({"command": ["python3", "-c", ASKING], **patterns}, ["work", "small", "a title", "end"])
    assert tried.state["error"] is None, tried.state["error"]
    assert tried.left_out == left_out
    assert tried.differing_tokens() == 0
    counted = [tried.state[f"num_{kind}_requests"] for kind in ("model", "helper", "abandoned")]
    assert counted == [4, len(left_out), 0]
