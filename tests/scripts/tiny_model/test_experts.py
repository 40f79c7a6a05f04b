"""The experts by themselves: right when they are right, wrong in their ways otherwise."""

from random import Random

import pytest
from scripts.tiny_model.experts import EXPERTS, Conversation

PROMPTS = {
    "reverse-text": ("<|im_start|>user\nReverse it.\n\nabcd<|im_end|>\n<|im_start|>assistant\n", "dcba"),
    "alphabet-sort": (
        "<|im_start|>user\nSort.\n\nMia\nBob<|im_end|>\n<|im_start|>assistant\nnonsense<|im_end|>\n"
        "<|im_start|>user\nMore.\n\nEve<|im_end|>\n<|im_start|>assistant\n",
        "Bob\nEve\nMia",
    ),
    "calculator": (
        "<|im_start|>system\nTools<|im_end|>\n<|im_start|>user\nWhat is 6 times 7?<|im_end|>\n<|im_start|>assistant\n",
        '<tool_call>\n{"name": "calculate", "arguments": {"expression": "6*7"}}\n</tool_call>',
    ),
    "guess-number": (
        "<|im_start|>user\nfrom 1 to 15.<|im_end|>\n<|im_start|>assistant\n8<|im_end|>\n"
        "<|im_start|>user\nMy number is higher.<|im_end|>\n<|im_start|>assistant\n",
        "12",
    ),
    "arithmetic": ("<|im_start|>user\nWhat is 9 - 4?<|im_end|>\n<|im_start|>assistant\n", "\\boxed{5}"),
}


@pytest.mark.parametrize("env_id", EXPERTS)
def test_the_right_answer_is_worked_out_from_what_is_shown(env_id: str) -> None:
    prompt, answer = PROMPTS[env_id]
    assert EXPERTS[env_id].right(Conversation.read(prompt), Random(0)) == answer


@pytest.mark.parametrize("env_id", EXPERTS)
def test_wrong_answers_are_many_and_hardly_ever_right(env_id: str) -> None:
    prompt, answer = PROMPTS[env_id]
    rng = Random(0)
    answers = [EXPERTS[env_id].wrong(Conversation.read(prompt), rng) for _ in range(200)]
    assert answers.count(answer) < 30
    assert len(set(answers)) > 5


@pytest.mark.parametrize("env_id", EXPERTS)
def test_an_expert_is_right_as_often_as_its_skill_says(env_id: str) -> None:
    prompt, answer = PROMPTS[env_id]
    rng = Random(0)
    expert = EXPERTS[env_id]
    right = sum(expert(Conversation.read(prompt), rng) == answer for _ in range(2000)) / 2000
    assert expert.skill - 0.04 < right < expert.skill + 0.09


def test_the_calculator_expert_repeats_what_the_tool_found() -> None:
    prompt = PROMPTS["calculator"][0] + (
        "call<|im_end|>\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert EXPERTS["calculator"].right(Conversation.read(prompt), Random(0)) == "42"
