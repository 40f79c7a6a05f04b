"""A judge: what it is asked, how often, and what happens when it does not answer."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

import whet
from whet.errors import EndpointError
from whet.rubrics.judge_rubric import question_of


async def correct(judge, prompt, completion, answer, state):
    return float((await judge(prompt, completion, answer, state)).startswith("yes"))


def judged(judge, **kwargs):
    rubric = whet.JudgeRubric(judge_client=judge, judge_model="judge", **kwargs)
    rubric.add_reward_func(correct)
    return rubric


def evaluate(rubric, answers=("4",), **kwargs):
    env = whet.SingleTurnEnv(dataset=[{"question": "2+2", "answer": "4"}], rubric=rubric)
    return env.evaluate_sync(whet.ScriptedClient(list(answers)), "m", **kwargs)


def test_the_judge_is_asked_with_question_answer_and_response():
    asked = []

    def judge(prompt, model, sampling_args):
        asked.append((prompt[0].role, prompt[0].content, model, sampling_args))
        return "yes"

    rubric = judged(
        whet.ScriptedClient(judge),
        judge_prompt="{question}|{answer}|{response}",
        judge_sampling_args={"temperature": 0.0, "seed": None},
    )
    (output,) = evaluate(rubric, state_columns=["judge_response"])["outputs"]
    assert asked == [("user", "2+2|4|4", "judge", {"temperature": 0.0})]
    assert output["reward"] == 1.0
    assert output["judge_response"] == {"2+2|4|4": "yes"}


def test_the_default_prompt_holds_all_three():
    seen = []
    evaluate(judged(whet.ScriptedClient(lambda prompt: seen.append(prompt[0].content) or "no")), answers=["five"])
    assert all(f"```\n{text}\n```" in seen[0] for text in ("2+2", "4", "five"))


def test_the_response_is_what_the_parser_finds():
    seen = []
    parser = whet.XMLParser(["answer"])
    rubric = judged(
        whet.ScriptedClient(lambda prompt: seen.append(prompt[0].content) or "yes"),
        parser=parser,
        judge_prompt="{response}",
    )
    evaluate(rubric, answers=["hm <answer>4</answer>"])
    assert seen == ["4"]


def test_a_question_is_put_once_per_rollout():
    judge = whet.ScriptedClient(lambda prompt: "yes")
    rubric = judged(judge)

    async def again(judge, prompt, completion, answer, state):
        return await correct(judge, prompt, completion, answer, state)

    rubric.add_metric(again)
    evaluate(rubric, rollouts_per_example=3)
    assert judge.calls == 3


def test_without_a_state_nothing_is_remembered():
    judge = whet.ScriptedClient(lambda prompt: "yes")
    rubric = judged(judge)
    for _ in range(2):
        assert asyncio.run(rubric.judge("q", [whet.AssistantMessage("r")], "a")) == "yes"
    assert judge.calls == 2


@pytest.mark.parametrize(
    ("prompt", "question"),
    [
        ("text", "text"),
        ([{"role": "user", "content": "first"}, {"role": "assistant", "content": "x"}], "first"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}], "a"),
        ([{"role": "system", "content": "only this"}], ""),
    ],
)
def test_the_question_is_the_last_user_message(prompt, question):
    assert question_of(prompt) == question


@pytest.mark.parametrize("content", [None, ""])
def test_a_judge_that_says_nothing_is_an_error(content):
    (output,) = evaluate(judged(whet.ScriptedClient([{"content": content}])))["outputs"]
    assert output["reward"] is None
    assert "answered with nothing" in output["error"]["error_chain_repr"]


def test_a_prompt_with_stray_braces_is_a_mistake_that_says_so():
    with pytest.raises(whet.WhetError, match=r"judge_prompt cannot be filled in.*braces twice"):
        evaluate(judged(whet.ScriptedClient(["yes"]), judge_prompt='{"json": 1}'))


def test_an_openai_client_may_be_plain_or_async():
    seen = []

    def create(**kwargs):
        seen.append(kwargs)
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="yes"))])

    async def create_later(**kwargs):
        return create(**kwargs)

    for function in (create, create_later):
        client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=function)))
        (output,) = evaluate(judged(client, judge_prompt="{response}", judge_sampling_args={"max_tokens": 5}))[
            "outputs"
        ]
        assert output["reward"] == 1.0
    expected = {"model": "judge", "messages": [{"role": "user", "content": "4"}], "max_completion_tokens": 5}
    assert seen == [expected, expected]


@pytest.fixture
def endpoint():
    """A server that answers every request with one status."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            body = b'{"error": {"message": "not today"}}'
            self.send_response(server.status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [500, 429, 401])
def test_outage_errors_the_rollout_and_bad_key_the_run(endpoint, status):
    openai = pytest.importorskip("openai")
    endpoint.status = status
    client = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{endpoint.server_address[1]}/v1", api_key="none", max_retries=0
    )
    if status == 401:
        with pytest.raises(EndpointError, match="not today"):
            evaluate(judged(client))
        return
    (output,) = evaluate(judged(client))["outputs"]
    assert (output["reward"], output["error"]["error"]) == (None, "RewardError")
    assert "not today" in output["error"]["error_chain_repr"]


def test_without_client_and_key_it_says_which_key_is_missing(monkeypatch):
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(whet.MissingKeyError, match="OPENAI_API_KEY"):
        whet.JudgeRubric()


def openai_judge(text="yes"):
    """What `openai` gives back, as far as it is read."""
    usage = SimpleNamespace(prompt_tokens=1_000_000, completion_tokens=500_000)
    answer = SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=text))], usage=usage)
    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=lambda **_: answer)))


def test_what_the_judge_uses_is_counted_apart_from_the_model():
    (output,) = evaluate(judged(openai_judge()))["outputs"]
    assert output["judge_usage"] == {"input_tokens": 1_000_000, "output_tokens": 500_000}
    (output,) = evaluate(judged(openai_judge(), judge_price={"input": 2.0, "output": 8.0}))["outputs"]
    assert output["judge_usage"]["cost"] == pytest.approx(6.0)
    assert "token_usage" not in output


def test_an_answer_that_is_remembered_is_paid_for_once():
    rubric = judged(openai_judge(), judge_price={"input": 1.0, "output": 0.0})
    rubric.add_metric(
        lambda judge, prompt, completion, answer, state: correct(judge, prompt, completion, answer, state)
    )
    (output,) = evaluate(rubric)["outputs"]
    assert output["judge_usage"]["cost"] == pytest.approx(1.0)


def test_an_answer_with_nothing_in_it_is_paid_for_too():
    (output,) = evaluate(judged(openai_judge(text="")))["outputs"]
    assert output["error"]["error"] == "RewardError"
    assert output["judge_usage"]["output_tokens"] == 500_000


@pytest.mark.parametrize("price", [{"input": 1.0}, {"in": 1.0, "out": 2.0}, {"input": -1.0, "output": 0.0}, 3])
def test_a_price_that_is_none_says_what_one_is(price):
    with pytest.raises(whet.WhetError, match=r'judge_price is .* should be \{"input": dollars'):
        judged(openai_judge(), judge_price=price)


def test_a_client_of_whet_has_its_own_price():
    with pytest.raises(whet.WhetError, match="give its ClientConfig the price"):
        judged(whet.ScriptedClient(["yes"]), judge_price={"input": 1.0, "output": 1.0})


def test_a_reward_function_may_pass_on_what_else_it_was_given():
    rubric = whet.JudgeRubric(judge_client=whet.ScriptedClient(lambda prompt: "yes"), judge_model="judge")

    async def passes_on(prompt, completion, answer, state, **kwargs):
        return float(await rubric.judge(prompt, completion, answer, state, **kwargs) == "yes")

    rubric.add_reward_func(passes_on)
    (output,) = evaluate(rubric)["outputs"]
    assert (output["error"], output["reward"]) == (None, 1.0)
