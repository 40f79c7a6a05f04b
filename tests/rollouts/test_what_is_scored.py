"""What a model did is scored, and what failed around it is an error: for every class of errors.

The same table is in docs/design/evaluations.md.
"""

import asyncio
from pathlib import Path

import pytest

import whet
from whet import errors
from whet.rollouts.groups import run_group

TABLE = Path(__file__).parents[2] / "docs" / "design" / "evaluations.md"
SCORED = {errors.OverlongPromptError, errors.SandboxFileError}
"""Classes that a client may raise and the rollout is scored with what there is."""


def classes(base):
    return [base, *(one for below in base.__subclasses__() for one in classes(below))]


def instance(kind):
    return kind("it failed")


@pytest.mark.parametrize(
    "kind", dict.fromkeys(kind for kind in classes(errors.Error) if kind.__module__ == "whet.errors")
)
def test_what_a_client_raises_is_scored_or_an_error(kind):
    env = whet.SingleTurnEnv(
        dataset=[{"question": "q"}], rubric=whet.Rubric([lambda completion: 1.0 - len(completion)])
    )
    client = whet.ScriptedClient([instance(kind)])
    (state,) = asyncio.run(run_group(env, [env.get_dataset()[0]], client, "m", {}))
    if kind in SCORED:
        assert (state["error"], state["reward"]) == (None, 1.0)
    else:
        assert type(state["error"]) is kind
        assert state["reward"] is None


@pytest.mark.parametrize("kind", [kind for kind in classes(errors.Error) if kind.__module__ == "whet.errors"])
def test_each_class_is_in_the_table(kind):
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("|") and f"`{kind.__name__}`" in line]
    assert len(rows) == 1
    assert ("| scored |" in rows[0]) == (kind in SCORED)


@pytest.mark.parametrize("text", ["", "I cannot help with that.", "<tool_call>{"])
def test_an_answer_is_scored_whatever_it_is(text):
    env = whet.SingleTurnEnv(
        dataset=[{"question": "q"}], rubric=whet.Rubric([lambda completion: float(len(completion))])
    )
    results = env.evaluate_sync(whet.ScriptedClient([text]), "m")
    assert (results["outputs"][0]["reward"], results["outputs"][0]["error"]) == (1.0, None)


@pytest.mark.parametrize("arguments", ["", "null", "[1]", '{"at": 1', "nothing", '"{"', '{"at": "two"}', '{"up": 1}'])
def test_a_broken_call_is_an_answer_of_the_tool(arguments):
    def look(at: int = 0) -> str:
        """Look."""
        return f"seen {at}"

    call = whet.AssistantMessage(None, tool_calls=[whet.ToolCall(id="1", name="look", arguments=arguments)])
    env = whet.ToolEnv(dataset=[{"question": "q"}], tools=[look], rubric=whet.Rubric([lambda completion: 0.5]))
    results = env.evaluate_sync(whet.ScriptedClient([call, "done"]), "m")
    row = results["outputs"][0]
    assert (row["reward"], row["error"], row["completion"][-1]["content"]) == (0.5, None, "done")
    assert row["completion"][1]["content"]
