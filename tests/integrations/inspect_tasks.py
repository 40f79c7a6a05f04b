"""Inspect tasks of every kind that `test_inspect_env.py` plays or sees refused; read by Inspect in `.venv-inspect`."""

from inspect_ai import Task, task
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ContentImage
from inspect_ai.scorer import Score, accuracy, choice, exact, includes, match, mean, model_graded_qa, scorer
from inspect_ai.solver import chain, generate, multiple_choice, prompt_template, solver, system_message, use_tools
from inspect_ai.tool import tool

SAMPLES = [Sample(input="one", target="1"), Sample(input="two", target="2")]


@task
def numbers(template="Say {prompt} in digits."):
    solvers = [system_message("Be brief."), chain(prompt_template(template), generate())]
    return Task(dataset=SAMPLES, solver=solvers, scorer=match())


@task
def conversation():
    input = [ChatMessageSystem(content="Count."), ChatMessageUser(content="one?")]
    return Task(dataset=[Sample(input=input, target="1")], scorer=exact())


@task
def choices():
    sample = Sample(input="Which is a number?", choices=["red", "seven"], target="B")
    return Task(dataset=[sample], solver=multiple_choice(), scorer=choice())


@solver
def once_more():
    async def solve(state, generate):
        state = await generate(state)
        state.messages.append(ChatMessageUser(content="sure?"))
        return await generate(state)

    return solve


@solver
def forgets():
    async def solve(state, generate):
        state = await generate(state)
        state.messages = [ChatMessageUser(content="anew")]
        return await generate(state)

    return solve


@solver
def raises():
    async def solve(state, generate):
        state = await generate(state)
        raise KeyError(state.output.completion)

    return solve


@scorer(metrics=[accuracy()])
def judged(value="x"):
    async def score(state, target):
        return Score(value=value)

    return score


@scorer(metrics={"*": [mean()]})
def parts():
    async def score(state, target):
        text = state.output.completion
        return Score(value={"long": len(text) / 10, "right": text == target.text})

    return score


@task
def two_turns():
    return Task(dataset=SAMPLES, solver=once_more(), scorer=match())


@task
def branches():
    return Task(dataset=SAMPLES, solver=forgets(), scorer=match())


@task
def broken():
    return Task(dataset=SAMPLES, solver=raises(), scorer=match())


@task
def several():
    return Task(dataset=SAMPLES, scorer=[match(), includes(), parts()])


@task
def odd_score():
    return Task(dataset=SAMPLES, scorer=judged("maybe"))


@task
def no_number():
    return Task(dataset=SAMPLES, scorer=judged(float("nan")))


@task
def in_a_sandbox():
    return Task(dataset=SAMPLES, scorer=match(), sandbox="docker")


@task
def by_a_model():
    return Task(dataset=SAMPLES, scorer=model_graded_qa())


@task
def unscored():
    return Task(dataset=SAMPLES)


@tool
def add():
    async def execute(a: int, b: int):
        """Add.

        Args:
            a: a number
            b: a number
        """
        return a + b

    return execute


@task
def tools():
    return Task(dataset=SAMPLES, solver=[use_tools(add()), generate()], scorer=match())


@task
def agent():
    return Task(dataset=SAMPLES, solver=react(tools=[add()]), scorer=match())


@task
def pictures():
    sample = Sample(input=[ChatMessageUser(content=[ContentImage(image="data:image/png;base64,AA==")])], target="1")
    return Task(dataset=[sample], scorer=match())
