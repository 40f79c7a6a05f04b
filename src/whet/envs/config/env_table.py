"""`[[env]]` of a config file; the base class of those of training and prompt searches.

Not in `sections.py`, which every `load_environment` needs: importing an environment should not import pydantic.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from whet.config import StrictModel
from whet.envs.config.sections import loader_arguments
from whet.envs.identity.ids import parse_id
from whet.errors import ConfigError, EnvironmentLoadError


class EnvTable(StrictModel):
    """`[[env]]` of any config: an environment, and the arguments of its loader."""

    id: str = Field(
        min_length=1,
        description="An installed environment (NAME, OWNER/NAME, with @VERSION), a path, or a URL with its hash.",
    )
    weight: float = Field(1.0, gt=0, description="Its share, relative to the other environments.")
    name: str | None = Field(None, min_length=1, description="Name in results; the id if absent.")
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of load_environment.")
    taskset: dict[str, Any] | None = Field(None, description="Config of the taskset: config.taskset of the loader.")
    harness: dict[str, Any] | None = Field(None, description="Config of the harness: config.harness of the loader.")

    @field_validator("id")
    @classmethod
    def _well_formed(cls, value: str) -> str:
        try:
            parse_id(value)
        except EnvironmentLoadError as error:
            raise ValueError(str(error)) from None
        return value

    @model_validator(mode="after")
    def _nothing_twice(self) -> Self:
        try:
            self.loader_args()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def loader_args(self) -> dict[str, Any]:
        """The arguments of `load_environment`."""
        return loader_arguments(self.args, self.taskset, self.harness)
