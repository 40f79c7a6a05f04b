"""`RLMEnv`: a model whose code, in a sandbox, calls copies of the model and functions of this process."""

import json

import pytest

import whet
from whet.types import AssistantMessage, ToolCall


def look(key: str) -> int:
    """A number by its name."""
    return {"a": 6, "b": 7}[key]


def right(state, answer) -> float:
    return float(state["final_answer"] == answer)


def cells(language, codes):
    """A model that executes these, one a turn; asked by its own code, it answers in capitals."""
    left = iter(codes)

    def answer(prompt):
        if "SCAFFOLDING" not in str(prompt):
            return prompt[-1]["content"].upper()
        code = next(left, None)
        if code is None:
            return "done"
        call = ToolCall(id="c", name=f"call_{language}_repl", arguments=json.dumps({"code": code}))
        return AssistantMessage(content="", tool_calls=[call])

    return whet.ScriptedClient(answer)


def played(language, codes, context="three\nlines\nhere", **options):
    from verifiers.envs.experimental.rlm_env import RLMEnv

    rows = [{"question": "6 * 7 = ?", "answer": "42", "info": {"context": context}}]
    env = RLMEnv(repl_language=language, dataset=rows, rubric=whet.Rubric([right]), root_tools=[look], **options)
    (row,) = env.evaluate_sync(cells(language, codes), "policy", state_columns=["trajectory", "final_answer"])[
        "outputs"
    ]
    assert row["error"] is None
    return row, [message["content"] for message in row["completion"] if message["role"] == "tool"]


def test_python_calls_functions_and_sub_models():
    codes = [
        "x = look('a') * look(key='b')\nlen(open('context.txt').read().split())",
        "print(llm_batch(['one', 'two']), x)\nlook('c')",
        "answer['content'] = str(x)\nanswer['ready'] = True",
    ]
    row, said = played("python", codes, include_sub_llm_in_trajectory=True)
    assert (row["reward"], row["stop_condition"]) == (1.0, "answer_ready")
    assert said[0] == "Out[1]: 3"
    assert said[1].startswith("['ONE', 'TWO'] 42\n")
    assert said[1].endswith("RuntimeError: KeyError: 'c'")
    assert [bool(step["extras"]) for step in row["trajectory"]] == [False, False, True, True, False]
    counted = {
        name: row["metrics"][name] for name in ("sub_llm_call_count", "sub_llm_max_batch_size", "look_root_calls")
    }
    assert counted == {"sub_llm_call_count": 2.0, "sub_llm_max_batch_size": 2.0, "look_root_calls": 3.0}
    assert len(row["completion"]) == 6


def test_bash_keeps_its_variables_and_calls_functions():
    codes = [
        "export N=$((6 * 7)); cd /tmp",
        "pwd; look '\"a\"'; llm_batch 'say so' two",
        "export ANSWER_CONTENT=$N ANSWER_READY=1",
    ]
    row, said = played("bash", codes)
    assert (row["reward"], said[1]) == (1.0, "/tmp\n6\nSAY SO\nTWO\n")


def test_interpreter_that_ended_has_its_functions_again():
    _, said = played("python", ["answer['content'] = '42'", "import os; os._exit(1)", "look('b')", "answer['content']"])
    assert "restarted" in said[1]
    assert said[2].startswith("Out[3]: 7")
    assert said[3].startswith("Out[4]: ''")


def test_answer_that_is_not_ready_counts_at_the_end():
    row, _ = played("python", ["answer['content'] = '42'"])
    assert (row["reward"], row["stop_condition"], row["final_answer"]) == (1.0, "no_tools_called", "42")


def test_budget_of_sub_models_is_kept():
    _, said = played("python", ["llm_batch(['one'])"], sub_max_completion_tokens=0)
    assert "budget of llm_batch is used up" in said[0]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"enable_summarization": True}, "enable_summarization"),
        ({"root_tools": [max], "repl_language": "R"}, "'bash' or"),
    ],
)
def test_what_there_is_not_is_refused(option, said):
    from verifiers.envs.experimental.rlm_env import RLMEnv

    with pytest.raises(whet.WhetError, match=said):
        RLMEnv(dataset=[{"question": "?"}], **option)
