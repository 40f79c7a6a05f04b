"""The config of one evaluation. Its fields are the options of `whet eval run` and the keys of config files.

The named types are fields that other configs with a model have too; each description is the help text everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from whet.clients.config import ClientConfig
from whet.clients.endpoints import DEFAULT_FILE, find_endpoint
from whet.config import Option, StrictModel, options_of
from whet.envs.identity.ids import label_of
from whet.inference.devices import DEVICE_HELP, DEVICE_PATTERN, DTYPE_HELP, EngineDtype
from whet.inference.model_names import MODEL_HELP

ModelName = Annotated[
    str,
    Option("-m", aliases=("endpoint_id",)),
    Field(
        min_length=1,
        description=f"{MODEL_HELP} With an endpoint: its model, or a short name of --endpoints.",
    ),
]
BaseUrl = Annotated[
    str | None,
    Option("-b", "URL", aliases=("api_base_url",)),
    Field(description="OpenAI-compatible endpoint; without it the model is run here."),
]
ApiKeyVar = Annotated[
    str, Option("-k", "NAME"), Field(description="Environment variable that holds the endpoint's key.")
]
EndpointsFile = Annotated[
    Path,
    Option("-e", aliases=("endpoints_path",)),
    Field(description="File with short names for models behind endpoints."),
]
EnvFiles = Annotated[
    tuple[Path, ...],
    Option(metavar="FILE"),
    Field(description="File of KEY=VALUE lines for keys and environments; never saved."),
]
MaxConcurrent = Annotated[int, Option("-c"), Field(ge=1, description="Rollouts in flight at once.")]
Timeout = Annotated[float | None, Option(metavar="SECONDS"), Field(gt=0, description="Seconds a rollout may take.")]
Offline = Annotated[bool, Field(description="Reach nothing outside this machine.")]
Dtype = Annotated[EngineDtype, Field(description=DTYPE_HELP)]
Device = Annotated[str, Field(pattern=DEVICE_PATTERN, description=f"Of a model run here: {DEVICE_HELP}")]
EngineName = Annotated[
    Literal["embedded", "vllm"],
    Field(description="What computes a model run here: whet's own engine, or a vLLM server that whet starts and ends."),
]
Threads = Annotated[
    int | None, Field(ge=1, description="CPU threads of a model run here; torch's own choice if absent.")
]
Internal = Option(offered=False)
NOT_REPEATED = ("environment", "model", "base_url", "env_file", "resume", "save")
"""Fields that `command_words` writes in its own way, or not at all."""


class EvalConfig(StrictModel):
    """`whet eval run ENV`: a model on an environment's held-out tasks."""

    environment: Annotated[str, Option(aliases=("id", "env_id"))] = Field(
        min_length=1, description="An installed environment (NAME, OWNER/NAME, with @VERSION), a path, or a URL."
    )
    model: ModelName = "whet/tiny"
    base_url: BaseUrl = None
    api_key_var: ApiKeyVar = "OPENAI_API_KEY"
    endpoints: EndpointsFile = DEFAULT_FILE
    endpoint: Annotated[ClientConfig | None, Internal] = Field(
        None, exclude=True, description="What a short name stands for, looked up."
    )
    short_name: Annotated[str | None, Internal] = Field(
        None, description="The short name that stood for the model and its endpoint."
    )
    varied: Annotated[dict[str, Any], Internal] = Field(
        default_factory=dict, description="What a sweep set for this evaluation, by name; for labels."
    )
    env_file: EnvFiles = ()
    num_examples: Annotated[int, Option("-n")] = Field(5, ge=-1, description="Held-out tasks; -1 takes all.")
    rollouts_per_example: Annotated[int, Option("-r")] = Field(3, ge=1, description="Rollouts of each task.")
    max_concurrent: MaxConcurrent = 32
    max_tokens: Annotated[int | None, Option("-t")] = Field(
        None, ge=1, description="Most new tokens in one turn; without it, as many as the context holds."
    )
    temperature: Annotated[float | None, Option("-T")] = Field(
        None, ge=0, description="Softmax temperature; 0 is greedy."
    )
    sampling_args: Annotated[dict[str, Any], Option("-S")] = Field(
        default_factory=dict, description="Further sampling arguments."
    )
    env_args: Annotated[dict[str, Any], Option("-a")] = Field(
        default_factory=dict, description="Arguments of load_environment."
    )
    extra_env_kwargs: Annotated[dict[str, Any], Option("-x")] = Field(
        default_factory=dict, description="Settings of the environment, whatever load_environment takes."
    )
    shuffle: Annotated[int | None, Option(metavar="[SEED]")] = Field(
        None, ge=0, description="Seed of the order of tasks; absent, the dataset's own order."
    )
    timeout: Timeout = None
    max_retries: int = Field(
        0, ge=0, description="Further attempts of a rollout that failed because of the model or its endpoint."
    )
    state_columns: Annotated[tuple[str, ...], Option("-C", "NAME,...")] = Field(
        (), description="Further values of the state to save with each rollout."
    )
    independent_scoring: Annotated[bool, Option("-i")] = Field(
        False, description="Score each rollout by itself, without its group."
    )
    workers: Annotated[int | None, Option("-w", aliases=("num_workers",))] = Field(
        None, ge=1, description="Processes; absent, one for every 256 rollouts in flight."
    )
    seed: int | None = Field(
        None, ge=0, description="Seed of the sampling; absent, 0 for models run here, and none is sent to endpoints."
    )
    engine: EngineName = "embedded"
    dtype: Dtype = "float32"
    device: Device = "auto"
    threads: Threads = None
    save: Annotated[bool, Option("-s", aliases=("save_results",))] = Field(
        True, description="Keep every rollout, and the averages, in a directory of their own."
    )
    output_directory: Annotated[Path, Option("-o", aliases=("output_dir",))] = Field(
        Path("outputs/evals"), description="Where results are saved."
    )
    resume: Annotated[Path | None, Option("-R", "[PATH]", aliases=("resume_path",))] = Field(
        None, description="Evaluation to continue: its directory."
    )
    offline: Offline = False

    @field_validator("num_examples")
    @classmethod
    def _some(cls, value: int) -> int:
        if value == 0:
            raise ValueError("evaluating no task says nothing; give at least 1, or -1 for all")
        return value

    def with_endpoint(self) -> EvalConfig:
        """This config with the model's short name looked up, where it is one. A base URL says that it is none."""
        entry = None if self.base_url is not None else find_endpoint(self.model, self.endpoints)
        if entry is None:
            return self
        urls = ",".join(config.api_base_url for config in entry.client.spread())
        update = {"model": entry.model, "base_url": urls, "endpoint": entry.client, "short_name": self.model}
        return self.model_copy(update=update)

    @property
    def label(self) -> str:
        """The environment's name: its id, or the last part of a path."""
        path = Path(self.environment)
        is_path = self.environment.startswith((".", "/", "~")) or path.suffix == ".py" or path.exists()
        return path.stem if is_path else label_of(self.environment)

    @property
    def local(self) -> bool:
        """Whether the model is run in this process."""
        return self.base_url is None

    def resolved_sampling(self, defaults: dict[str, Any]) -> dict[str, Any]:
        """The sampling arguments of every rollout: the environment's `defaults` under those of this config."""
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


def command_words(config: Mapping[str, Any]) -> list[str]:
    """`whet eval run ...` for a config in JSON values, without what has its default.

    Left out are files with keys, which are never saved, and what says where the results go.
    """
    short_name, base_url = config.get("short_name"), config.get("base_url")
    words = ["whet", "eval", "run", config["environment"], "-m", str(short_name or config.get("model"))]
    if base_url and not short_name:
        words += ["-b", str(base_url)]
    for name, field in options_of(EvalConfig, without=NOT_REPEATED).items():
        value, option = config.get(name), f"--{name.replace('_', '-')}"
        default = str(field.default) if isinstance(field.default, Path) else field.default
        if value is None or value in ([], {}, False, default):
            continue
        if isinstance(value, bool):
            words.append(option)
        elif isinstance(value, Mapping):
            words += [option, json.dumps(value, ensure_ascii=False)]
        elif isinstance(value, list):
            words += [option, ",".join(map(str, value))]
        else:
            words.append(f"{option}={value}")
    return words
