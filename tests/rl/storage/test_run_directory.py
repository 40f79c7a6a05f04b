"""What may differ in the config of a run that is resumed."""

import tomllib

import pytest

from whet.errors import ConfigError
from whet.rl.config import RunConfig
from whet.rl.storage.run_directory import RunDirectory, config_differences

CONFIG = {"name": "r", "env": [{"id": "a"}]}


def read_again(config, *without):
    saved = tomllib.loads(config.to_toml())
    return RunConfig.model_validate({name: value for name, value in saved.items() if name not in without})


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
    saved = read_again(RunConfig.model_validate(CONFIG).settled())
    machine(count=2)  # where a new run would compute in bfloat16
    assert config_differences(saved, RunConfig.model_validate({**CONFIG, section: change})) == refused


@pytest.mark.parametrize("key", ["optimizer", "algorithm", "buffer", "budget", "workers_per_env"])
def test_a_key_that_did_not_exist_has_its_default(key):
    config = RunConfig.model_validate(CONFIG).settled()
    assert config_differences(read_again(config, key), config) == []


def test_a_section_that_the_run_began_without_is_a_difference():
    began = read_again(RunConfig.model_validate(CONFIG))
    assert "lora.rank: was None, is 16" in config_differences(began, RunConfig.model_validate({**CONFIG, "lora": {}}))


def test_a_run_of_another_version_of_whet_is_not_resumed(tmp_path):
    config = RunConfig.model_validate({**CONFIG, "runs_directory": tmp_path})
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "config.toml").write_text(config.to_toml() + "[gone]\nkey = 1\n")
    with pytest.raises(ConfigError, match=r"r/config\.toml: .*'gone'"):
        RunDirectory(config.directory).check(config, resume=True)
