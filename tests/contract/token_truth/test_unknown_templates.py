"""Token truth with unknown templates: continued where what follows an answer can be proved, else a branch.

1. A template that extends cleanly, drops earlier thinking, strips answers, parts arguments or writes no end of an
   answer is continued: one branch, whatever was sampled. What is added is what the template writes there.
2. A template that edits what came before when more is said cannot be continued: it re-orders, numbers messages, moves
   the tools, or cuts earlier messages short. Every such turn is a branch, which is the conversation rendered whole.
3. A template that refuses a conversation says so in one line.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scripted_engine import OPENING, TOOL, Rollout
from small_tokenizers import byte_pairs, split_to_bytes

from whet.errors import ModelError
from whet.inference.rendering.chat_renderer import ChatRenderer
from whet.types import AssistantMessage, Messages, ToolCall, ToolMessage, UserMessage

MARKERS = ("<s>", "</s>", "<user>", "<bot>", "<tool>", "<tool_call>", "</tool_call>", "<think>", "</think>")
CALLS = (
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)
HEAD = "<s>{% if tools %}{{ tools | tojson }}\n{% endif %}"
TURN = "{% if add_generation_prompt %}<bot>{% endif %}"


def template(message: str, *, head: str = HEAD, turn: str = TURN, messages: str = "messages") -> str:
    return f"{head}{{% for m in {messages} %}}{message}{{% endfor %}}{turn}"


ROLE = "<{{ 'bot' if m.role == 'assistant' else m.role }}>"
CONTINUED = {
    "extends cleanly": template(f"{ROLE}{{{{ m.content }}}}{CALLS}</s>\n"),
    "drops earlier thinking": template(
        f"{ROLE}{{% if m.reasoning_content and loop.last %}}<think>{{{{ m.reasoning_content }}}}</think>{{% endif %}}"
        f"{{{{ m.content }}}}{CALLS}</s>"
    ),
    "closes an empty thought in the last answer": template(
        f"{ROLE}{{% if m.role == 'assistant' and loop.last %}}<think>\n\n</think>\n\n{{% endif %}}"
        f"{{{{ m.content }}}}{CALLS}</s>\n",
        turn="{% if add_generation_prompt %}<bot><think>\n{% endif %}",
    ),
    "strips whitespace": template(f"{ROLE}{{{{ m.content | trim }}}}{CALLS}</s>"),
    "goes through arguments": template(
        f"{ROLE}{{{{ m.content }}}}{{% for c in m.tool_calls or [] %}}<tool_call>{{{{ c.function.name }}}}"
        "{% for key, value in c.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}</tool_call>{% endfor %}"
        "</s>"
    ),
}
NO_END = template(
    "[{{ m.role }}] {{ m.content }}\n", head="", turn="{% if add_generation_prompt %}[assistant] {% endif %}"
)
BRANCHED = {
    "shows the latest message first": template(f"{ROLE}{{{{ m.content }}}}</s>", messages="messages | reverse"),
    "numbers the messages": template(f"{ROLE}{{{{ loop.index }}}} {{{{ m.content }}}}</s>"),
    "shows the tools before the last message": template(
        f"{{% if loop.last and tools %}}{{{{ tools | tojson }}}}{{% endif %}}{ROLE}{{{{ m.content }}}}</s>", head="<s>"
    ),
    "cuts earlier messages short": template(f"{ROLE}{{{{ m.content if loop.last else m.content[:2] }}}}</s>"),
    "says how many there are": template(f"{ROLE}{{{{ m.content }}}}</s>", head="<s>{{ messages | length }}\n"),
}
STRICT = template(f"{{% if m.role == 'system' %}}{{{{ raise_exception('no system role') }}}}{{% endif %}}{ROLE}</s>")
ANSWERS = [
    "plain</s>",
    "  \n\n odd \t whitespace\u00a0\n\n</s>",
    "naïve 日本 🎉</s>",
    "<think>steps</think>answer</s>",
    "<think>never closed</s>",
    "<think>cut off while thinking",
    '<tool_call>\n{"name": "calculate", "arguments": {"a": true, "b": 1, "c": 1.0, "d": null}}\n</tool_call></s>',
    'two\n<tool_call>\n{"name": "calculate", "arguments": {}}\n</tool_call>\n'
    '<tool_call>\n{"name": "calculate", "arguments": {"x": "1"}}\n</tool_call></s>',
    '<tool_call>\n{"name": broken\n</tool_call></s>',
    '<tool_call>\n{"name": "calculate", "arguments": "no object"}\n</tool_call></s>',
    "<user>not a turn</s>",
    "cut off in the mid",
    "</s>",
    "",
]


def renderer_of(chat_template: str) -> ChatRenderer:
    tokenizer = byte_pairs(MARKERS, eos="</s>")
    tokenizer.chat_template = chat_template
    return ChatRenderer(tokenizer)


def answers_for(renderer: ChatRenderer) -> list[list[int]]:
    whole = [list(renderer.tokenizer.encode(answer, add_special_tokens=False)) for answer in ANSWERS]
    return [*whole, *(split_to_bytes(renderer.tokenizer, ids) for ids in whole)]


def play(renderer: ChatRenderer, answers: list[list[int]], tools: Any = None) -> Rollout:
    rollout = Rollout(renderer, answers, tools)
    asyncio.run(rollout.play())
    return rollout


@pytest.mark.parametrize("tools", [None, [TOOL]], ids=["without tools", "with tools"])
@pytest.mark.parametrize("kind", CONTINUED)
def test_1_a_template_that_leaves_the_past_alone_is_one_branch(kind: str, tools: Any) -> None:
    renderer = renderer_of(CONTINUED[kind])
    answers = answers_for(renderer)
    rollout = play(renderer, answers, tools)
    assert rollout.engine.branches() == 1
    assert [step["tokens"]["completion_ids"] for step in rollout.state["trajectory"]] == answers


def test_1_a_template_that_writes_no_end_of_an_answer_is_one_branch_without_tools() -> None:
    renderer = renderer_of(NO_END)
    rollout = play(renderer, [ids for ids in answers_for(renderer) if "calculate" not in renderer.decode(ids)])
    assert rollout.engine.branches() == 1


@pytest.mark.parametrize("kind", [*CONTINUED])
@pytest.mark.parametrize("calls", [False, True], ids=["a user", "results"])
def test_1_what_is_added_is_what_the_template_writes(kind: str, calls: bool) -> None:
    renderer = renderer_of(CONTINUED[kind])
    made = [ToolCall("c0", "calculate", '{"x": 1}'), ToolCall("c1", "calculate", "{}")] if calls else None
    answer = AssistantMessage("" if calls else "plain", tool_calls=made)
    added: Messages = [ToolMessage("3", tool_call_id="c0"), ToolMessage(" 4 ", tool_call_id="c1")] if calls else []
    added.append(UserMessage("Go on."))
    prompt, ids = renderer.render(OPENING, [TOOL]), renderer.tokenizer.encode("plain</s>", add_special_tokens=False)
    ours = renderer.extend(prompt, ids, [*OPENING, answer], added, [TOOL])
    assert ours is not None
    whole = renderer.decode(renderer.render([*OPENING, answer, *added], [TOOL]))
    written = renderer.decode(ours[len(prompt) + len(ids) :])
    assert written
    assert whole.endswith(f"</s>{written}")


@pytest.mark.parametrize("kind", BRANCHED)
def test_2_a_template_that_edits_the_past_is_rendered_whole(kind: str) -> None:
    renderer = renderer_of(BRANCHED[kind])
    answers = [renderer.tokenizer.encode(text, add_special_tokens=False) for text in ("longer than two</s>", "b</s>")]
    rollout = play(renderer, answers, [TOOL])
    assert rollout.engine.branches() == 2
    last = rollout.state["trajectory"][-1]
    assert last["tokens"]["prompt_ids"] == renderer.render(last["prompt"], [TOOL])


def test_3_a_conversation_that_a_template_refuses_is_one_line() -> None:
    with pytest.raises(ModelError, match=r"no system role") as caught:
        renderer_of(STRICT).render(OPENING)
    assert "\n" not in str(caught.value)
