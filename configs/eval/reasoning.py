"""One task of reasoning-gym as an environment, for `suite.toml`. Needs: pip install 'whet[rg]'."""

import whet


def load_environment(task: str, num_train: int = 1000, num_eval: int = 256, seed: int = 0) -> whet.Environment:
    """
    Args:
        task: Name of a dataset of reasoning-gym.
        num_train: Tasks to train on.
        num_eval: Tasks to evaluate on.
        seed: Of the series of tasks.
    """
    return whet.ReasoningGymEnv(task, num_train_examples=num_train, num_eval_examples=num_eval, seed=seed)
