"""A taskset of verifiers 0.4 whose agent leaves its conversation: one trace with three branches, in one process."""

import httpx
import verifiers.v1 as vf
from verifiers.v1.harness import Harness, HarnessConfig
from verifiers.v1.runtimes import ProgramResult

__all__ = ["ForkHarness", "ForkTaskset"]


class ForkTask(vf.Task):
    @vf.reward
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.assistant_messages) / 10

    @vf.metric
    async def branches(self, trace: vf.Trace) -> float:
        return float(trace.num_branches)


class ForkTaskset(vf.Taskset[ForkTask]):
    def load(self):
        return [ForkTask(vf.TaskData(prompt=f"{word}?"), self.config.task) for word in ("one", "two")]


class ForkHarness(Harness[HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        async with httpx.AsyncClient(timeout=None, trust_env=False) as client:

            async def say(*messages):
                body = {"model": ctx.model, "messages": list(messages)}
                headers = {"Authorization": f"Bearer {secret}"}
                answer = await client.post(f"{endpoint}/chat/completions", json=body, headers=headers)
                answer.raise_for_status()
                return [*messages, answer.json()["choices"][0]["message"]]

            first = await say({"role": "user", "content": data.prompt})
            await say(*first, {"role": "user", "content": "more"})
            await say(*first, {"role": "user", "content": "less"})
            await say({"role": "user", "content": f"other than {data.prompt}"})
        return ProgramResult(0, "", "")
