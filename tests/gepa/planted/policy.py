"""What the scripted policy says: the right answer, by the chance that its prompt gives it. Pure.

It obeys its system prompt and the descriptions of its tools. Equal questions with equal seeds have equal answers; each
change of the prompt is another draw, as it would be with a real model.
"""

from __future__ import annotations

import json
from typing import Any

from planted.world import World, answer_of, draw, questions_in, text_of


def answer(world: World, body: dict[str, Any], number: int) -> dict[str, Any]:
    """The message that answers a request. `number` is how often the same was asked, where the request has no seed."""
    messages, tools = body["messages"], body.get("tools") or []
    told = "\n".join(tool["function"].get("description") or "" for tool in tools)
    prompt = f"{text_of(messages, 'system')}\n{told}"
    question = (questions_in(text_of(messages, "user")) or [""])[-1]
    if not question:
        return {"role": "assistant", "content": "What is the question?"}
    if messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": text_of(messages[-1:], "tool")}
    luck = draw("policy", world.seed, prompt, question, body.get("seed", number))
    right = luck.random() < world.chance(prompt, question)
    if tools:
        asked = question if right else question.replace("Record", "Record number")
        call = {"name": tools[0]["function"]["name"], "arguments": json.dumps({"record": asked})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "type": "function", "function": call}],
        }
    return {"role": "assistant", "content": answer_of(question if right else question[::-1])}
