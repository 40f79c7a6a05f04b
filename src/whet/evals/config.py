"""What one evaluation run is asked to do. Each description is the option's `--help`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from whet.clients.config import ClientConfig
from whet.clients.endpoints import DEFAULT_FILE, find_endpoint
from whet.config import StrictModel


class EvalConfig(StrictModel):
    """`whet eval run ENV`: a model on an environment's held-out tasks."""

    environment: str = Field(min_length=1, description="Name of an installed environment, or a path to one.")
    model: str = Field(
        "whet/tiny",
        min_length=1,
        description="whet/tiny, a local directory, an endpoint's model, or a short name of --endpoints.",
    )
    base_url: str | None = Field(None, description="OpenAI-compatible endpoint; without it the model is run here.")
    endpoints: Path = Field(DEFAULT_FILE, description="File with short names for models behind endpoints.")
    endpoint: ClientConfig | None = Field(None, exclude=True, description="What a short name stands for, looked up.")
    short_name: str | None = Field(None, description="The short name that stood for the model and its endpoint.")
    varied: dict[str, Any] = Field(
        default_factory=dict, description="What a sweep set for this evaluation, by name; for labels."
    )
    env_file: tuple[Path, ...] = Field(
        (), description="File of KEY=VALUE lines for keys and environments; never saved."
    )
    api_key_var: str = Field("OPENAI_API_KEY", description="Environment variable that holds the endpoint's key.")
    num_examples: int = Field(5, ge=-1, description="Held-out tasks; -1 takes all.")
    rollouts_per_example: int = Field(3, ge=1, description="Rollouts of each task.")
    max_concurrent: int = Field(32, ge=1, description="Rollouts in flight at once.")
    max_tokens: int | None = Field(None, ge=1, description="Most new tokens in one turn.")
    temperature: float | None = Field(None, ge=0, description="Softmax temperature; 0 is greedy.")
    sampling_args: dict[str, Any] = Field(default_factory=dict, description="Further sampling arguments.")
    env_args: dict[str, Any] = Field(default_factory=dict, description="Arguments of load_environment.")
    extra_env_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the environment, whatever load_environment takes."
    )
    shuffle: int | None = Field(None, ge=0, description="Seed of the order of tasks; absent, the dataset's own order.")
    timeout: float | None = Field(None, gt=0, description="Seconds a rollout may take.")
    max_retries: int = Field(0, ge=0, description="Attempts more for a rollout that failed for the model's sake.")
    state_columns: tuple[str, ...] = Field((), description="Further values of the state to save with each rollout.")
    independent_scoring: bool = Field(False, description="Score each rollout by itself, without its group.")
    workers: int | None = Field(None, ge=1, description="Processes; absent, one for every 256 rollouts in flight.")
    resume: Path | None = Field(None, description="Evaluation to continue: its directory.")
    offline: bool = Field(False, description="Reach nothing outside this machine.")
    seed: int | None = Field(
        None, ge=0, description="Seed of the sampling; absent, 0 for models run here, and none is sent to endpoints."
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Precision of a model run here.")
    threads: int | None = Field(
        None, ge=1, description="CPU threads of a model run here; torch's own choice if absent."
    )
    save: bool = Field(True, description="Keep every rollout, and the averages, in a directory of their own.")
    output_directory: Path = Field(Path("outputs/evals"), description="Where results are saved.")

    @field_validator("num_examples")
    @classmethod
    def _some(cls, value: int) -> int:
        if value == 0:
            raise ValueError("evaluating no task says nothing; give at least 1, or -1 for all")
        return value

    def with_endpoint(self) -> EvalConfig:
        """This config with the model's short name looked up, where it is one. A base URL says that it is none."""
        found = None if self.base_url is not None else find_endpoint(self.model, self.endpoints)
        if found is None:
            return self
        urls = ",".join(config.api_base_url for config in found.client.spread())
        update = {"model": found.model, "base_url": urls, "endpoint": found.client, "short_name": self.model}
        return self.model_copy(update=update)

    @property
    def label(self) -> str:
        """The environment's name: its id, or the last part of a path."""
        path = Path(self.environment)
        is_path = self.environment.startswith((".", "/", "~")) or path.suffix == ".py" or path.exists()
        return path.stem if is_path else self.environment

    @property
    def local(self) -> bool:
        """Whether the model is run in this process."""
        return self.base_url is None

    def resolved_sampling(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """The sampling arguments of every rollout: the environment's `defaults` under what is asked for here."""
        args = {**defaults, **self.sampling_args}
        if self.max_tokens is not None:
            args["max_tokens"] = self.max_tokens
        if self.temperature is not None:
            args["temperature"] = self.temperature
        if self.local:
            args.setdefault("temperature", 1.0)
        return args

    @property
    def resolved_seed(self) -> int | None:
        return 0 if self.seed is None and self.local else self.seed
