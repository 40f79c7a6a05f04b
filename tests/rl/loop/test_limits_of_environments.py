"""`max_concurrent` of an `[[env]]`: rollouts that take long leave slots to the other environments."""

import asyncio

import whet
from whet.rl.data.curriculum import DrawnTask
from whet.rl.loop.group_runner import GroupRunner, TrainingEnv

GROUP = 4


def test_slow_environment_leaves_slots_to_others():
    others_done, at_once = asyncio.Event(), []

    async def answer(prompt):
        if prompt[-1]["content"] == "slow":
            at_once.append(1)
            await others_done.wait()
            at_once.append(-1)
        return "done"

    def environment(name, most):
        rows = [{"prompt": [{"role": "user", "content": name}], "example_id": 0}]
        env = whet.SingleTurnEnv(dataset=[{"question": name}], rubric=whet.Rubric([lambda completion: 1.0]))
        return TrainingEnv(name, env, rows, most)

    runner = GroupRunner(
        [environment("slow", 1), environment("quick", None)], whet.ScriptedClient(answer), "m", {}, GROUP, GROUP, seed=0
    )

    async def play():
        slow = asyncio.ensure_future(runner.run(0, DrawnTask(0, 0, 0, 0)))
        await asyncio.sleep(0)  # it asks for its slots first
        quick = await asyncio.wait_for(runner.run(1, DrawnTask(1, 1, 0, 0)), 30)
        others_done.set()
        return await slow, quick

    groups = asyncio.run(play())
    assert [len(group.states) for group in groups] == [GROUP, GROUP]
    assert max(sum(at_once[: end + 1]) for end in range(len(at_once))) == 1


def test_cancelled_wait_gives_its_slot_back():
    rows = [{"prompt": [{"role": "user", "content": "x"}], "example_id": 0}]
    env = whet.SingleTurnEnv(dataset=[{"question": "x"}], rubric=whet.Rubric([lambda completion: 1.0]))
    runner = GroupRunner(
        [TrainingEnv("x", env, rows, 2)], whet.ScriptedClient(lambda prompt: "done"), "m", {}, 2, 2, seed=0
    )

    async def play():
        await runner._limit.acquire()
        await runner._limit.acquire()
        waiting = asyncio.ensure_future(runner.run(0, DrawnTask(0, 0, 0, 0)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        runner._limit.release()
        runner._limit.release()
        return await asyncio.wait_for(runner.run(1, DrawnTask(1, 0, 0, 0)), 30)

    assert len(asyncio.run(play()).states) == 2
