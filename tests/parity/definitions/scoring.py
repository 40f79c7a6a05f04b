"""Rubrics: weights, metrics, group functions, several rubrics, judges, objects, what goes wrong."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import verifiers as vf
from datasets import Dataset

from definitions.case import Case, definition, questions, text


def length(completion) -> float:
    return float(len(text(completion[-1])))


async def is_even(completion) -> float:
    return float(len(text(completion[-1])) % 2 == 0)


def grow(prompt: list[dict[str, Any]], before: int) -> str:
    return "x" * (1 + before)


def scored(*rubrics: vf.Rubric, rollouts: int = 3, **arguments: Any) -> Case:
    rubric = rubrics[0] if len(rubrics) == 1 else vf.RubricGroup(rubrics=list(rubrics))
    env = vf.SingleTurnEnv(dataset=questions(2), rubric=rubric)
    return Case(env, grow, {"rollouts_per_example": rollouts, **arguments})


@definition("rewards are weighted and summed, metrics are only recorded")
def weights() -> Case:
    rubric = vf.Rubric(funcs=[length, is_even], weights=[0.5, -2.0])
    rubric.add_reward_func(lambda **kwargs: 1, weight=0.25)
    rubric.add_metric(partial_name)
    return scored(rubric)


def partial_name(state, **kwargs) -> bool:
    return len(state["trajectory"]) == 1


@definition("functions run in their order and see what those before them left in the state")
def order() -> Case:
    def first(state) -> float:
        state["note"] = "set by first"
        return 0.0

    def second(state) -> float:
        return float(state["note"] == "set by first")

    return scored(vf.Rubric(funcs=[first, second]), state_columns=["note"])


@definition("a function of plural names scores the group")
def group_function() -> Case:
    def longest(completions, **kwargs) -> list[float]:
        lengths = [len(text(completion[-1])) for completion in completions]
        return [float(one == max(lengths)) for one in lengths]

    def ranks(states, prompts, answers, infos, tasks):
        return [index / 10 for index, _ in enumerate(states)]

    return scored(vf.Rubric(funcs=[longest, length, ranks], weights=[1.0, 0.0, 1.0]))


@definition("a function whose annotation is a list scores the group")
def annotated_group_function() -> Case:
    def spread(states, **kwargs):
        return [float(index) for index in range(len(states))]

    def listed(**kwargs) -> float:
        return [0.5 for _ in kwargs["completions"]]

    listed.__annotations__["return"] = list[float]
    return scored(vf.Rubric(funcs=[spread, listed]))


@definition("an async group function")
def async_group_function() -> Case:
    async def spread(states) -> list[float]:
        return [float(index) for index in range(len(states))]

    return scored(vf.Rubric(funcs=[spread]))


@definition("group functions cannot score one by one")
def group_function_alone() -> Case:
    def spread(states) -> list[float]:
        return [0.0 for _ in states]

    return scored(vf.Rubric(funcs=[spread]), independent_scoring=True)


@definition("the rewards of several rubrics add up and their metrics are merged")
def several() -> Case:
    return scored(vf.Rubric(funcs=[length]), vf.Rubric(funcs=[is_even, length], weights=[1.0, 2.0]))


@definition("the advantage comes from the reward of all rubrics")
def advantage_of_all() -> Case:
    return scored(vf.Rubric(funcs=[lambda **kwargs: 1.0]), vf.Rubric(funcs=[length]))


@definition("a rubric added to an environment counts")
def added() -> Case:
    case = scored(vf.Rubric(funcs=[length]))
    case.env.add_rubric(vf.Rubric(funcs=[is_even]))
    return case


@definition("a rubric around the one that an environment has")
def around() -> Case:
    case = scored(vf.Rubric(funcs=[length]), vf.Rubric(funcs=[is_even]))
    outer = vf.Rubric(funcs=[lambda completion: 10.0], weights=[0.5])
    case.env.rubric = vf.RubricGroup(rubrics=[outer, case.env.rubric])
    return case


@definition("functions and metrics of a RubricGroup go to its first rubric")
def group_additions() -> Case:
    first, second = vf.Rubric(funcs=[length]), vf.Rubric(funcs=[is_even])
    group = vf.RubricGroup(rubrics=[first, second])
    group.add_reward_func(lambda box: float(box), weight=3.0)
    group.add_metric(partial_name)
    group.add_class_object("box", 2)
    case = scored(group)
    case.more = lambda: [len(first.funcs), len(second.funcs), group._get_reward_func_names()]
    return case


@definition("objects are offered by name")
def class_objects() -> Case:
    rubric = vf.Rubric(parser=vf.XMLParser(["answer"]))
    rubric.add_class_object("table", {"bonus": 4})
    rubric.add_score_object_provider(lambda state: {"turns": len(state["trajectory"])})
    rubric.add_reward_func(lambda table, turns, parser: float(table["bonus"] + turns + len(parser.get_fields())))
    return scored(rubric)


@definition("a whole number and a truth value are rewards")
def number_kinds() -> Case:
    return scored(vf.Rubric(funcs=[lambda **kwargs: 2, partial_name]))


@definition("a reward function that raises")
def raises() -> Case:
    def broken(completion) -> float:
        raise ValueError("no such thing") if len(text(completion[0])) == 2 else RuntimeError("nor this")

    return scored(vf.Rubric(funcs=[length, broken]))


@definition("a reward that is no number")
def no_number() -> Case:
    return scored(vf.Rubric(funcs=[lambda completion: {1: None, 2: "high", 3: float("nan")}[len(text(completion[0]))]]))


@definition("a group function that raises")
def group_raises() -> Case:
    def broken(states) -> list[float]:
        raise ValueError("no such thing")

    return scored(vf.Rubric(funcs=[length, broken]))


@definition("a group function that returns too few numbers")
def group_too_few() -> Case:
    def broken(states) -> list[float]:
        return [1.0]

    return scored(vf.Rubric(funcs=[broken]))


@definition("a reward function that names what there is not")
def unknown_name() -> Case:
    return scored(vf.Rubric(funcs=[lambda completion, nowhere: 1.0]))


@definition("a partial and an object that can be called are reward functions")
def callables() -> Case:
    def at_least(completion, least) -> float:
        return float(len(text(completion[-1])) >= least)

    return scored(vf.Rubric(funcs=[partial(at_least, least=2)]))


@definition("as many weights as functions")
def wrong_weights() -> Case:
    return scored(vf.Rubric(funcs=[length], weights=[1.0, 2.0]))


@definition("a rubric of one's own class")
def own_class() -> Case:
    class Doubled(vf.Rubric):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.add_reward_func(self.doubled)

        async def doubled(self, completion, state) -> float:
            state["doubled"] = True
            return 2 * length(completion)

        @vf.cleanup
        async def tidy(self, state, answer) -> None:
            state["tidied"] = f"{answer}, {state['reward']}"

    return scored(Doubled(), rollouts=1, state_columns=["doubled", "tidied"])


@definition("errored rollouts are told from rewards")
def errored() -> Case:
    env = vf.SingleTurnEnv(dataset=questions(2), rubric=vf.Rubric(funcs=[lambda **kwargs: 1.0]))

    def answer(prompt: list[dict[str, Any]], before: int) -> Any:
        return vf.ModelError("down") if before == 1 else "fine"

    return Case(env, answer, {"rollouts_per_example": 2}, saves=True)


@definition("mathematical answers are compared as mathematics")
def math() -> Case:
    pairs = [
        ("\\frac{1}{2}", "so \\boxed{0.5}"),
        ("x+1", "\\boxed{1 + x}"),
        ("4", "4"),
        ("4", "\\boxed{4}"),
        ("4", "<think>\\boxed{4}</think> \\boxed{5}"),
        ("(1, 2)", "\\boxed{(1,2)}"),
        ("\\{1,2\\}", "\\boxed{\\{2,1\\}}"),
        ("12", "\\boxed{12.0}"),
        ("\\sqrt{8}", "\\boxed{2\\sqrt{2}}"),
        ("50\\%", "\\boxed{0.5}"),
        ("cat", "\\boxed{cat}"),
        ("cat", "\\boxed{dog}"),
        ("7", ""),
        ("7", "\\boxed{}"),
        ("1000", "\\boxed{1,000}"),
        ("3", "\\boxed{x = 3}"),
        ("3", "<think>\\boxed{3}"),
        ("0.0000001", "\\boxed{0.0000004}"),
    ]
    rows = Dataset.from_list([{"question": given, "answer": answer} for answer, given in pairs])
    env = vf.SingleTurnEnv(dataset=rows, rubric=vf.MathRubric(max_workers=1))
    return Case(env, lambda prompt, before: text(prompt[-1]))


class Judge:
    """As much of `openai.AsyncOpenAI` as a judge is asked through."""

    def __init__(self, verdict: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.verdict = verdict
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self.create))

    async def create(self, **arguments: Any) -> Any:
        self.asked.append(arguments)
        verdict = self.verdict(arguments["messages"][0]["content"])
        if isinstance(verdict, Exception):
            raise verdict
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=verdict))])


async def judged_right(judge, prompt, completion, answer, state) -> float:
    return float("yes" in (await judge(prompt, completion, answer, state)).lower())


async def judged_again(judge, prompt, completion, answer, state) -> float:
    return float(await judge(prompt, completion, answer, state) == "Yes.")


def judging(verdict: Any, prompt: list[dict[str, Any]] | None = None, **arguments: Any) -> Case:
    judge = Judge(verdict)
    rubric = vf.JudgeRubric(judge_client=judge, judge_model="judge", **arguments)
    rubric.add_reward_func(judged_right)
    rubric.add_reward_func(judged_again, weight=0.5)
    rows = Dataset.from_list([{"prompt": prompt, "answer": "2"}]) if prompt else questions(2)
    env = vf.SingleTurnEnv(dataset=rows, rubric=rubric)
    asked = lambda: sorted(judge.asked, key=repr)  # noqa: E731
    return Case(env, grow, {"rollouts_per_example": 2}, more=asked)


@definition("a judge is asked once for each rollout")
def judge() -> Case:
    return judging(
        lambda question: "Yes." if "R: xx" in question else "no",
        judge_prompt="Q: {question} A: {answer} R: {response}",
        judge_sampling_args={"temperature": 0.0, "max_tokens": 3, "seed": None},
        parser=vf.Parser(extract_fn=str.strip),
    )


@definition("a judge with the library's own prompt")
def default_judge_prompt() -> Case:
    return judging(lambda question: "yes")


@definition("the question for a judge where the prompt ends with the assistant's words")
def judge_question() -> Case:
    prompt = [{"role": "user", "content": "Name it."}, {"role": "assistant", "content": "It is"}]
    return judging(lambda question: "no", prompt, judge_prompt="{question}|{answer}|{response}")


@definition("a judge behind a client that is not asynchronous")
def synchronous_judge() -> Case:
    class Synchronous(Judge):
        def create(self, **arguments: Any) -> Any:
            self.asked.append(arguments)
            return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content="Yes."))])

    rubric = vf.JudgeRubric(judge_client=Synchronous(None), judge_prompt="{answer} {response}")
    rubric.add_reward_func(judged_right)
    return scored(rubric)


@definition("a judge that fails")
def failing_judge() -> Case:
    return judging(lambda question: RuntimeError("judge is down"), judge_prompt="{question}")


@definition("a judge that answers with nothing")
def silent_judge() -> Case:
    return judging(lambda question: None, judge_prompt="{question}")
