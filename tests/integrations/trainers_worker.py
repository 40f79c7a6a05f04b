"""`python trainers_worker.py verl|skyrl OUT`, in `.venv-trainers`: rollouts of whet/tiny through a trainer's interface.

What samples in place of the trainer's servers is whet's engine, called as they are; the types of the trainer are real.
"""

import asyncio
import json
import sys
import typing

import typing_extensions
from transformers import AutoTokenizer

import whet
from whet.inference.loading import load_policy
from whet.inference.model_names import resolve_model
from whet.inference.protocol import SampleRequest, SamplingParams

WHICH, OUT = sys.argv[1:]
policy = load_policy("whet/tiny", seed=0)
tokenizer = AutoTokenizer.from_pretrained(str(resolve_model("whet/tiny")))
turns = []


async def sampled(rollout, prompt_ids, sampling):
    """What a server does with ids and sampling parameters in the words of vLLM."""
    params = SamplingParams(
        temperature=sampling["temperature"],
        max_tokens=sampling["max_tokens"],
        stop_token_ids=tuple(sampling["stop_token_ids"]),
    )
    sample = await policy.engine.sample(SampleRequest(list(prompt_ids), params))
    turns.append([rollout, list(prompt_ids), sample.ids, sample.logprobs])
    return sample


def longest(completions):
    lengths = [len(completion[-1]["content"] or "") for completion in completions]
    return [float(length == max(lengths)) for length in lengths]


def of_verl():
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.rollout.replica import TokenOutput

    from whet.errors import ConfigError
    from whet.integrations import verl

    class Servers:
        async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
            sample = await sampled(request_id, prompt_ids, sampling_params)
            return TokenOutput(token_ids=sample.ids, log_probs=sample.logprobs, stop_reason="completed")

    lengths = {"prompt_length": 400, "response_length": 120}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": lengths}, "data": {}})
    env = whet.load_environment("calculator")
    verl.load_environment = lambda name, **args: (
        env if name == "calculator" else whet.SingleTurnEnv(dataset=[{"question": "q"}], rubric=whet.Rubric([longest]))
    )

    def loop_of(env_id):
        return hydra.utils.instantiate(
            config={"_target_": "whet.integrations.verl.EnvAgentLoop", "env_id": env_id},
            trainer_config=DictConfigWrap(config=config),
            server_manager=Servers(),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
        )

    async def play():
        sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
        loops = [(loop_of("calculator"), row) for row in verl.rows(env, 8) for _ in range(2)]
        runs = [
            loop.run(sampling, raw_prompt=row.pop("prompt"), **row) for loop, row in ((a, dict(b)) for a, b in loops)
        ]
        return [output.model_dump() for output in await asyncio.gather(*runs)]

    outputs = asyncio.run(play())
    try:
        loop_of("compared")
        refused = ""
    except Exception as error:
        cause = error.__cause__ or error
        refused = str(cause if isinstance(cause, ConfigError) else error)
    return {
        "prompts": [output["prompt_ids"] for output in outputs],
        "responses": [output["response_ids"] for output in outputs],
        "masks": [output["response_mask"] for output in outputs],
        "logprobs": [output["response_logprobs"] for output in outputs],
        "rewards": [output["reward_score"] for output in outputs],
        "metrics": [output["extra_fields"]["reward_extra_info"] for output in outputs],
        "refused": refused,
    }


def of_skyrl():
    typing.TypedDict = typing_extensions.TypedDict  # what SkyRL needs of Python 3.12
    from skyrl.train.config import GeneratorConfig
    from skyrl.train.generators.base import GeneratorOutput, TrajectoryID

    from whet.integrations import skyrl

    class Servers:
        async def generate(self, input_batch, model=None):
            (ids,), (session,) = input_batch["prompt_token_ids"], input_batch["session_ids"]
            sample = await sampled(session, ids, input_batch["sampling_params"])
            return {
                "responses": [tokenizer.decode(sample.ids, skip_special_tokens=True)],
                "response_ids": [sample.ids],
                "stop_reasons": [sample.finish_reason],
                "response_logprobs": [sample.logprobs],
            }

    env = whet.load_environment("calculator")
    env.add_rubric(whet.Rubric([longest]))
    config = GeneratorConfig()
    config.max_input_length, config.sampling_params.max_generate_length = 400, 60
    rows = [dict(row) for row in skyrl.rows(env, 4) for _ in range(4)]
    batch = {
        "prompts": [row.pop("prompt") for row in rows],
        "env_classes": [row.pop("env_class") for row in rows],
        "env_extras": rows,
        "sampling_params": None,
        "trajectory_ids": [TrajectoryID(str(index // 4), index % 4) for index in range(16)],
        "batch_metadata": None,
    }
    output = asyncio.run(skyrl.EnvGenerator(env, config, Servers(), tokenizer).generate(batch))
    assert output.keys() <= GeneratorOutput.__annotations__.keys()
    return {
        "prompts": output["prompt_token_ids"],
        "responses": output["response_ids"],
        "masks": output["loss_masks"],
        "logprobs": output["rollout_logprobs"],
        "rewards": output["rewards"],
        "metrics": output["env_metrics"],
    }


if __name__ == "__main__":
    told = {"verl": of_verl, "skyrl": of_skyrl}[WHICH]()
    with open(OUT, "w", encoding="utf-8") as file:
        json.dump({**told, "turns": turns}, file)
