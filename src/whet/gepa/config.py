"""The config of one search for better prompts. Its fields are options of `whet gepa run` and keys of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from whet.clients.endpoints import DEFAULT_FILE
from whet.config import Option, StrictModel, options_of
from whet.envs.config.env_table import EnvTable
from whet.envs.identity.ids import label_of
from whet.evals.config import (
    ApiKeyVar,
    BaseUrl,
    Device,
    Dtype,
    EndpointsFile,
    EnvFiles,
    EvalConfig,
    MaxConcurrent,
    ModelName,
    Offline,
    Threads,
    Timeout,
)
from whet.evals.planning.options import IN_SAMPLING
from whet.system.redaction import redacted

Kind = Literal["system_prompt", "tools", "judge"]
"""Kinds of texts that can be optimised."""
OF_BOTH_MODELS = ("endpoints", "env_file", "max_concurrent", "timeout", "seed", "offline", "dtype", "device", "threads")
"""Fields with which both models are opened as evaluations open theirs."""


class SearchConfig(StrictModel):
    """`[gepa]`: how candidates are found and what has to be seen of one before it is believed."""

    acceptance: Literal["paired", "gepa"] = Field(
        "paired", description="paired: a race and a paired test on validation examples; gepa: the library's own sum."
    )
    held_out: int | None = Field(
        None, ge=0, description="Examples of the final comparison; 0 leaves it out; absent, as many as are paid for."
    )
    confirm_calls: int | None = Field(
        None, ge=2, description="Calls reserved for the final comparison; absent, a fifth of max_calls."
    )
    candidate_selection: Literal["likely_best", "pareto", "current_best", "epsilon_greedy", "top_k_pareto"] | None = (
        Field(
            None, description="Which candidate is changed next; absent, likely_best, and pareto with acceptance gepa."
        )
    )
    component_selection: Literal["round_robin", "all"] = Field(
        "round_robin", description="Whether one text is changed at a time, in turn, or all together."
    )
    max_chars: dict[str, int] = Field(
        default_factory=dict,
        description="Characters a text may have, by component; 1024 for tool descriptions, else 8000.",
    )
    max_unusable: int = Field(5, ge=1, description="Answers in a row without a usable text that end the search.")
    max_request_chars: int = Field(
        60_000, ge=4000, description="Characters of one question to the reflection model; rollouts are cut to fit."
    )
    max_retries: int = Field(2, ge=0, description="Calls more for one that failed for the endpoint's sake.")
    retry_delay: float = Field(2.0, ge=0, description="Seconds before the first of them; doubles each time.")


class EnvSection(EnvTable):
    """`[[env]]`: one environment whose prompt is optimised."""

    weight: float = Field(1.0, gt=0, description="Share of the examples, relative to the other environments.")

    @field_validator("name")
    @classmethod
    def _can_be_part_of_a_key(cls, value: str | None) -> str | None:
        if value is not None and ("/" in value or "@" in value):
            raise ValueError("a name may hold neither / nor @")
        return value

    @property
    def label(self) -> str:
        return self.name or Path(label_of(self.id).partition("@")[0]).stem


class GepaConfig(StrictModel):
    """`whet gepa run`: prompt optimisation."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="The run is the directory runs/<name>; auto, the default, takes the first name that is free.",
    )
    runs_directory: Path = Field(Path("runs"), description="Where run directories are made.")
    model: ModelName = "whet/tiny"
    reflection_model: Annotated[str | None, Option("-M")] = Field(
        None, min_length=1, description="Proposes new texts; named like the model, and the same if absent."
    )
    base_url: BaseUrl = None
    reflection_base_url: Annotated[str | None, Option(metavar="URL")] = Field(
        None, description="Endpoint of the reflection model; the model's own if absent."
    )
    api_key_var: ApiKeyVar = "OPENAI_API_KEY"
    reflection_api_key_var: Annotated[str | None, Option(metavar="NAME")] = Field(
        None, description="The same for the reflection model; the model's own if absent."
    )
    endpoints: EndpointsFile = DEFAULT_FILE
    env_file: EnvFiles = ()
    max_calls: Annotated[int, Option("-B")] = Field(
        500, ge=1, description="Rollouts that may ever be begun, the final comparison included."
    )
    max_cost: Annotated[float | None, Option(metavar="DOLLARS")] = Field(
        None, gt=0, description="Dollars after which no call is begun."
    )
    num_train: Annotated[int, Option("-n")] = Field(100, ge=1, description="Examples that proposals are made from.")
    num_val: Annotated[int, Option("-N")] = Field(50, ge=1, description="Examples that candidates are compared on.")
    minibatch_size: int = Field(3, ge=1, description="Examples of training that one proposal is made from.")
    perfect_score: float | None = Field(
        1.0, description="Highest possible reward; a prompt that has it on every example is not changed."
    )
    state_columns: Annotated[tuple[str, ...], Option("-C", "NAME,...")] = Field(
        (), description="Further values of the state to save and to show to the reflection model."
    )
    components: Annotated[tuple[Kind, ...], Option(metavar="KIND,...")] = Field(
        ("system_prompt",), min_length=1, description="What is optimised: system_prompt, tools, judge."
    )
    seed_prompt: Annotated[str | None, Option(metavar="TEXT|FILE")] = Field(
        None, min_length=1, description="System prompt to begin from, for environments that have none."
    )
    max_concurrent: MaxConcurrent = 32
    timeout: Timeout = None
    seed: int | None = Field(
        None,
        ge=0,
        description="Seed of everything random; absent, 0 for the search and models run here, and none is sent to "
        "endpoints.",
    )
    offline: Offline = False
    dtype: Dtype = "float32"
    device: Device = "auto"
    threads: Threads = None
    sampling: Annotated[dict[str, Any], Option("-S", long="--sampling-args", aliases=("sampling_args",))] = Field(
        default_factory=dict, description="Sampling arguments of the model."
    )
    reflection_sampling: Annotated[
        dict[str, Any], Option(long="--reflection-sampling-args", aliases=("reflection_sampling_args",))
    ] = Field(default_factory=dict, description="Sampling arguments of the reflection model.")
    gepa: SearchConfig = Field(default_factory=SearchConfig, description="How the search goes.")
    env: tuple[EnvSection, ...] = Field(min_length=1, description="One or several environments.")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        labels = [env.label for env in self.env]
        if twice := next((label for label in labels if labels.count(label) > 1), None):
            raise ValueError(f'[[env]] {twice!r} is there twice; give each its own name = "..."')
        if self.minibatch_size > self.num_train:
            raise ValueError(
                f"minibatch_size = {self.minibatch_size} is more than num_train = {self.num_train}: "
                "a proposal is made from examples of training"
            )
        if len(self.env) > min(self.num_train, self.num_val):
            raise ValueError(f"{len(self.env)} environments need at least as many num_train and num_val")
        for name in (*self.sampling, *self.reflection_sampling):
            if name in ("seed", "n"):
                raise ValueError(
                    f"sampling.{name} would make every call the same; the run's own 'seed' fixes every draw"
                )
        return self

    @property
    def directory(self) -> Path:
        return self.runs_directory / self.name

    @property
    def search_seed(self) -> int:
        """Of the search: it has one, whether or not endpoints are sent any."""
        return self.seed or 0

    def policy(self) -> EvalConfig:
        """The model that the prompts are for, as evaluations open models."""
        return self._model(self.model, self.base_url, self.api_key_var, self.sampling)

    def reflector(self) -> EvalConfig:
        """The model that proposes, in the same way; equal to `policy()` but for sampling where none was named."""
        key = self.reflection_api_key_var or self.api_key_var
        named = self.reflection_model is not None
        url = self.reflection_base_url or self.base_url
        return self._model(self.reflection_model if named else self.model, url, key, self.reflection_sampling)

    def _model(self, model: str | None, url: str | None, key: str, sampling: dict[str, Any]) -> EvalConfig:
        args = dict(sampling)
        fields = {name: args.pop(name) for name in IN_SAMPLING if name in args}
        fields |= {name: getattr(self, name) for name in OF_BOTH_MODELS}
        config = EvalConfig(
            environment=self.env[0].id,
            model=model or self.model,
            base_url=url,
            api_key_var=key,
            sampling_args=args,
            **fields,
        )
        return config.with_endpoint()

    def to_toml(self) -> str:
        """The resolved config, to begin another run with: without secrets, and without nulls, which TOML has not."""
        import tomli_w

        return tomli_w.dumps(_without_none(redacted(self.model_dump(mode="json", exclude={"env_file"}))))


OF_EVALUATIONS = (*IN_SAMPLING, "env_args")
"""Options that are not fields: they go into `[sampling]` and into the one environment."""
OPTIONS = {
    **options_of(GepaConfig, without=("gepa", "env")),
    **{name: EvalConfig.model_fields[name] for name in OF_EVALUATIONS},
}
"""The options of `whet gepa run` that set its config."""


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value if item is not None] if isinstance(value, list) else value
