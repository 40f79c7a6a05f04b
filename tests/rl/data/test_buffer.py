"""`[buffer]`: contradictions are errors, and a curriculum may be one's own."""

from typing import Any

import pytest

from whet.errors import ConfigError
from whet.rl.config import RunConfig
from whet.rl.data.curriculum import BufferConfig, DrawnTask, MixedCurriculum, Pool

ENVS = [{"id": "a"}, {"id": "b"}]


class Backwards:
    """A curriculum that takes the last row first."""

    def __init__(self, pools: list[Pool], *, seed: int) -> None:
        self.pools, self.seed, self.drawn = pools, seed, 0

    def next_task(self) -> DrawnTask:
        return self.next_of(0)

    def next_of(self, environment: int) -> DrawnTask:
        self.drawn += 1
        return DrawnTask(self.drawn - 1, environment, self.pools[environment].size - self.drawn, 0)

    def observe(self, task: DrawnTask, mean_reward: float) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


@pytest.mark.parametrize(
    ("buffer", "said"),
    [
        ({"easy_threshold": 0.8}, "easy_threshold has no effect without online_difficulty_filtering"),
        ({"hard_fraction": 0.1}, "hard_fraction has no effect"),
        ({"online_difficulty_filtering": True, "easy_threshold": 0.2, "hard_threshold": 0.5}, "should be below"),
        ({"online_difficulty_filtering": True, "easy_fraction": 0.6, "hard_fraction": 0.6}, "more than the whole"),
        ({"online_difficulty_filtering": True, "curriculum": "a:b"}, "drop one"),
        ({"env_ratios": [1.0, 0.0]}, "above 0"),
    ],
)
def test_what_contradicts_itself_is_an_error(buffer: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BufferConfig(**buffer)


@pytest.mark.parametrize(
    ("env", "said"), [([*ENVS, {"id": "c"}], "2 shares for 3"), ([{"id": "a", "weight": 2.0}, {"id": "b"}], "drop one")]
)
def test_ratios_are_one_for_each_environment_and_not_said_twice(env: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RunConfig(name="run", env=env, buffer={"env_ratios": [3, 1]})


def test_ratios_are_the_weights_of_the_environments() -> None:
    assert RunConfig(name="run", env=ENVS, buffer={"env_ratios": [3, 1]}).env_weights == (3, 1)
    assert RunConfig(name="run", env=[{"id": "a", "weight": 2.0}, {"id": "b"}]).env_weights == (2, 1)


@pytest.mark.parametrize(("reward", "kind"), [(0.95, "easy"), (0.5, None), (0.05, "hard")])
def test_tasks_rest_by_the_thresholds_and_only_with_filtering(reward: float, kind: str | None) -> None:
    keys = {"easy_threshold": 0.9, "hard_threshold": 0.1, "easy_fraction": 0.2, "hard_fraction": 0.3}
    for config in (BufferConfig(online_difficulty_filtering=True, **keys), BufferConfig()):
        curriculum = config.make_curriculum([Pool("a", 4)], seed=0)
        task = curriculum.next_task()
        curriculum.observe(task, reward)
        resting = curriculum.state_dict()["resting"]
        if config.online_difficulty_filtering:
            assert resting[0]["resting"] == ([] if kind is None else [[task.index, kind]])
        else:
            assert resting is None


def test_a_curriculum_of_one_s_own_is_named_by_its_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    module = types.ModuleType("my_curricula")
    module.Backwards = Backwards  # type: ignore[attr-defined]
    module.nothing = lambda pools, seed: object()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_curricula", module)
    made = BufferConfig(curriculum="my_curricula:Backwards").make_curriculum([Pool("a", 5)], 3)
    assert [made.next_task().index for _ in range(3)] == [4, 3, 2]
    with pytest.raises(ConfigError, match="made a object without next_task"):
        BufferConfig(curriculum="my_curricula:nothing").make_curriculum([Pool("a", 5)], 3)
    with pytest.raises(ConfigError, match="has no 'Backward'"):
        BufferConfig(curriculum="my_curricula:Backward").make_curriculum([Pool("a", 5)], 3)


def test_without_one_the_built_in_curriculum_is_made() -> None:
    assert isinstance(BufferConfig().make_curriculum([Pool("a", 5)], 3), MixedCurriculum)
