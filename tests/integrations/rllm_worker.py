"""`python rllm_worker.py MODE OUT [ARGUMENTS]`, in `.venv-trainers`: what rLLM did goes to the file OUT.

`train` runs the command with ARGUMENTS and records each turn that was sampled and each sequence that was trained.
`example` does so with the workflow of rLLM's own example, over whet's alias of `verifiers`. `config` is the config
alone. `engine` runs rLLM's workflow engine over whet/tiny, with an environment that compares rollouts of a group.
"""

import asyncio
import json
import sys

import whet

MODE, OUT, *ARGUMENTS = sys.argv[1:]


def recorded_training():
    from rllm.engine.rollout.tinker_engine import TinkerEngine
    from rllm.trainer.tinker import tinker_policy_trainer

    told = {"turns": [], "trained": [], "rewards": []}
    sample, transform = TinkerEngine.assemble_model_output, tinker_policy_trainer.transform_trajectory_groups_to_datums

    def sampled(self, token_input, token_output):
        output = sample(self, token_input, token_output)
        told["turns"].append([output.prompt_ids, list(token_output.tokens), list(token_output.logprobs)])
        return output

    def transformed(groups, *args, **kwargs):
        told["rewards"].append([trajectory.reward for group in groups for trajectory in group.trajectories])
        datums, metrics = transform(groups, *args, **kwargs)
        for datum in datums:
            first = datum.model_input.to_ints()[0]
            inputs = {name: data.data for name, data in datum.loss_fn_inputs.items()}
            told["trained"].append([[first, *inputs["target_tokens"]], inputs["mask"], inputs["logprobs"]])
        return datums, metrics

    TinkerEngine.assemble_model_output = sampled
    tinker_policy_trainer.transform_trajectory_groups_to_datums = transformed
    return told


def train():
    from whet.integrations.rllm.__main__ import main

    told = recorded_training()
    main(ARGUMENTS)
    return told


def example():
    whet.install_verifiers_alias()
    from examples.verifiers_env.workflow import VerifiersWorkflow

    from whet.integrations import rllm
    from whet.integrations.rllm.__main__ import main

    class Example(VerifiersWorkflow):
        """As it is; the environment arrives where that of whet's workflow does."""

        def __init__(self, rollout_engine, tasks, **kwargs):
            super().__init__(rollout_engine, tasks.env, **kwargs)

    told, rllm.EnvWorkflow = recorded_training(), Example
    main(ARGUMENTS)
    return told


def config():
    """The config that training would begin with."""
    from omegaconf import OmegaConf

    from whet.integrations.rllm import __main__ as command

    told = {}

    def kept(config):
        command.synchronised(config)
        told.update(OmegaConf.to_container(config, resolve=True, throw_on_missing=False))

    command.train = kept
    command.main(ARGUMENTS)
    return told


class Compared(whet.SingleTurnEnv):
    """Rewards the first rollout of a group most; a rollout of the second group fails once."""

    failed = False

    async def setup_state(self, state):
        if state["example_id"] == 1 and not Compared.failed:
            Compared.failed = True
            raise ValueError("the environment broke")


def first(completions):
    return [float(n == 0) + len(completions) for n in range(len(completions))]


def engine():
    from rllm.engine.rollout.rollout_engine import ModelOutput, RolloutEngine
    from rllm.engine.unified_workflow_engine import UnifiedWorkflowEngine

    from whet.inference.loading import load_policy
    from whet.integrations import rllm

    policy = load_policy("whet/tiny", seed=0)

    class Engine(RolloutEngine):
        async def _get_model_response(self, messages, **kwargs):
            kwargs.pop("application_id")
            response = await policy.client.get_response(
                whet.messages.normalize_messages(messages, field_name="m"), "tiny", {"max_tokens": 12}
            )
            tokens = response.message.tokens
            return ModelOutput(
                content=response.message.content,
                prompt_ids=tokens["prompt_ids"],
                completion_ids=tokens["completion_ids"],
                logprobs=tokens["completion_logprobs"],
                finish_reason=response.message.finish_reason,
            )

    env = Compared(dataset=[{"question": f"Say {n}."} for n in range(3)], rubric=whet.Rubric([first]))
    tasks = rllm.EnvTasks(env, group_size=4, max_retries=0)
    engine = UnifiedWorkflowEngine(rllm.EnvWorkflow, {"tasks": tasks}, Engine(), n_parallel_tasks=2)
    rows = [dict(row) for row in env.get_dataset() for _ in range(4)]
    episodes = asyncio.run(engine.execute_tasks(rows, [str(row["example_id"]) for row in rows]))
    engine.shutdown()
    return {
        "episodes": [episode.to_dict() for episode in episodes],
        "left": len(tasks._groups),
        "failed": Compared.failed,
    }


if __name__ == "__main__":
    told = {"train": train, "example": example, "engine": engine, "config": config}[MODE]()
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump(told, file)
