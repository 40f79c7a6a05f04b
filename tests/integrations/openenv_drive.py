"""`python openenv_drive.py URL`: openenv's own client plays calculator at URL in two sessions, and prints results."""

import asyncio
import json
import sys

from openenv.core.generic_client import GenericEnvClient


async def main(url):
    async with GenericEnvClient(base_url=url) as env, GenericEnvClient(base_url=url) as other:
        first = await env.reset(seed=0)
        begun = await other.reset(seed=1)
        question = first.observation["messages"][-1]["content"].split("What is ")[1].rstrip("?")
        for word, sign in (("plus", "+"), ("minus", "-"), ("times", "*")):
            question = question.replace(word, sign)
        call = {"name": first.observation["tools"][0]["name"], "arguments": {"expression": question}}
        called = await env.step({"message": "", "tool_calls": [call]})
        right = await env.step({"message": called.observation["messages"][-1]["content"]})
        wrong = await other.step({"message": "7"})
        results = (first, begun, called, right, wrong)
        print(json.dumps([[result.observation, result.reward, result.done] for result in results]))


asyncio.run(main(sys.argv[1]))
