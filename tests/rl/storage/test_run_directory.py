"""What may differ in the config of a run that is resumed."""

import tomllib
from functools import reduce
from operator import getitem

import pytest

from whet.rl.config import RunConfig
from whet.rl.storage.run_directory import FREE_ON_RESUME, config_differences

CONFIG = {"name": "r", "env": [{"id": "a"}]}


@pytest.mark.parametrize(
    ("section", "change", "refused"),
    [
        ("learner", {"device": "cpu"}, []),
        ("learner", {"device": "cpu", "ranks": 2, "rank_timeout_seconds": 20, "max_restarts": 0}, []),
        ("inference", {"device": "cuda:1"}, []),
        ("learner", {"device": "cuda:1"}, []),
        ("inference", {"dtype": "bfloat16"}, ["inference.dtype: was 'float32', is 'bfloat16'"]),
        ("deployment", {"threads": 2}, []),
        ("learner", {"device": "cpu", "dtype": "bfloat16"}, ["learner.dtype: was 'float32', is 'bfloat16'"]),
    ],
)
def test_a_run_may_be_resumed_on_another_device_and_in_no_other_dtype(section, change, refused, machine):
    saved = tomllib.loads(RunConfig.model_validate(CONFIG).settled().to_toml())
    machine(count=2)  # where a new run would compute in bfloat16
    assert config_differences(saved, RunConfig.model_validate({**CONFIG, section: change})) == refused


FULL = {
    **CONFIG,
    "lora": {"rank": 4},
    "early_stop": {},
    "sampling": {"temp_scheduler": {"start": 1.0, "end": 0.5}},
    "eval": {"interval": 2, "env": [{"id": "a"}]},
}


def leaves(table, path=()):
    """The path of each value that is no table."""
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(value, dict) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def test_a_run_that_began_before_a_key_existed_is_resumed_where_the_key_has_its_default():
    config = RunConfig.model_validate(FULL)
    changed = set(leaves(config.model_dump(mode="json", exclude_defaults=True)))
    free = 0
    for path in leaves(tomllib.loads(config.to_toml())):
        saved = tomllib.loads(config.to_toml())
        table = reduce(getitem, path[:-1], saved)
        before = table.pop(path[-1])
        name = ".".join(map(str, path))
        found = config_differences(saved, config)
        if path not in changed:
            assert found == [], name
            free += 1
        elif not {name, name.partition(".")[0]} & {*FREE_ON_RESUME}:
            assert len(found) == 1, name
            assert found[0].startswith(f"{name}: was ")
            assert found[0].endswith(f"is {before!r}")
    assert free > 50


@pytest.mark.parametrize("section", ["learner", "optimizer", "algorithm", "inference", "buffer", "budget"])
def test_a_section_that_did_not_exist_has_its_defaults(section):
    config = RunConfig.model_validate(CONFIG)
    saved = tomllib.loads(config.to_toml())
    saved.pop(section, None)
    assert config_differences(saved, config) == []


def test_a_section_that_the_run_began_without_is_a_difference():
    saved = tomllib.loads(RunConfig.model_validate(CONFIG).to_toml())
    found = config_differences(saved, RunConfig.model_validate({**CONFIG, "lora": {}}))
    assert "lora.rank: was None, is 16" in found
