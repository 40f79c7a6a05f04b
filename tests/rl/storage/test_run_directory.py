"""What may differ in the config of a run that is resumed."""

import tomllib

import pytest

from whet.rl.config import RunConfig
from whet.rl.storage.run_directory import config_differences

CONFIG = {"name": "r", "env": [{"id": "a"}]}


@pytest.mark.parametrize(
    ("section", "change", "refused"),
    [
        ("learner", {"device": "cpu"}, []),
        ("inference", {"device": "cuda:1"}, []),
        ("deployment", {"threads": 2}, []),
        ("learner", {"device": "cpu", "dtype": "bfloat16"}, ["learner.dtype: was 'float32', is 'bfloat16'"]),
    ],
)
def test_a_run_may_be_resumed_on_another_device_and_in_no_other_dtype(section, change, refused):
    saved = tomllib.loads(RunConfig.model_validate(CONFIG).to_toml())
    assert config_differences(saved, RunConfig.model_validate({**CONFIG, section: change})) == refused
