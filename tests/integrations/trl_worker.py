"""`python trl_worker.py STEPS OUT`: TRL trains whet/tiny on calculator; rewards and rollouts go to the file OUT."""

import json
import sys
import tempfile

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

import whet
from whet.inference.model_names import resolve_model
from whet.integrations import trl

torch.set_num_threads(1)
env = whet.load_environment("calculator")
sample, outputs = trl.rollout_func(env), []


def recorded(prompts, trainer):
    outputs.append(sample(prompts, trainer))
    return outputs[-1]


with tempfile.TemporaryDirectory() as scratch:
    trainer = GRPOTrainer(
        model=str(resolve_model("whet/tiny")),
        reward_funcs=trl.reward_func,
        train_dataset=Dataset.from_list(trl.rows(env, 64)),
        rollout_func=recorded,
        args=GRPOConfig(
            output_dir=scratch,
            per_device_train_batch_size=128,
            num_generations=8,
            max_completion_length=48,
            max_steps=int(sys.argv[1]),
            learning_rate=5e-4,
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_steps=1,
        ),
    )
    trainer.train()
first = {name: values[:8] for name, values in outputs[0].items()}
texts = trainer.processing_class.batch_decode(first["completion_ids"])
logged = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
told = {"rewards": [output["rewards"] for output in outputs], "logged": logged, "texts": texts, "first": first}
with open(sys.argv[2], "w", encoding="utf-8") as file:
    json.dump(told, file)
