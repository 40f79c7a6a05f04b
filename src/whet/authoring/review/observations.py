"""What the processes that run a package's code report about it: events, a JSON line each.

They come from a process that ran untrusted code, so the reader validates every line and stops at the first line that
is not an event.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from whet.authoring.review.package import CheckSettings
from whet.config import StrictModel

Text = Annotated[str, Field(max_length=4000)]
Effect = Literal["writes", "process", "network", "thread", "environment"]


class Argument(StrictModel):
    """A parameter of `load_environment`."""

    name: Text
    typed: bool
    has_default: bool
    documented: bool
    open: bool  # **kwargs


class Found(StrictModel):
    """A finding about the package's files."""

    event: Literal["found"] = "found"
    code: Text
    where: Text
    message: Text
    fix: Text


class Read(StrictModel):
    """The files have been read to their end."""

    event: Literal["read"] = "read"
    settings: CheckSettings


class SideEffect(StrictModel):
    """Something that importing did to the world outside the process."""

    event: Literal["side_effect"] = "side_effect"
    effect: Effect
    detail: Text
    where: Text


class Imported(StrictModel):
    event: Literal["imported"] = "imported"
    seconds: float
    error: Text | None


class Loaded(StrictModel):
    """What `load_environment` gave."""

    event: Literal["loaded"] = "loaded"
    seconds: float
    error: Text | None
    where: Text = ""  # load_environment's file and line
    kind: Text = ""  # the environment's class
    arguments: list[Argument] = Field(default_factory=list)
    undescribed: list[Text] = Field(default_factory=list)  # arguments that the README does not name
    missing_keys: list[Text] = Field(default_factory=list)
    single_turn: bool = False
    tools: list[Text] = Field(default_factory=list)
    weights: dict[Text, float] = Field(default_factory=dict)  # of the reward functions
    renamed: list[Text] = Field(default_factory=list)  # metrics called like others, or like what stands beside them
    group_rewards: bool = False


class Split(StrictModel):
    """The rows of one split. Texts are the first of their kind, counts are of all."""

    rows: int
    error: Text | None = None
    seconds: float = 0.0
    digest: Text = ""
    type_problems: list[Text] = Field(default_factory=list)
    duplicates: int = 0
    duplicate: Text = ""


class Rows(StrictModel):
    """Both splits; one that the environment has not is None."""

    event: Literal["rows"] = "rows"
    train: Split | None
    eval: Split | None
    overlap: int = 0
    overlapping: Text = ""
    shared_prompts: int = 0
    shared_prompt: Text = ""
    prompts_are_tasks: bool = True  # whether a prompt has a single answer within each split
    answered: float = 0.0  # share of rows with an `answer`


class BatchStarted(StrictModel):
    """A batch of rollouts that begins; the last of these says where an unfinished check hangs."""

    event: Literal["started"] = "started"
    probe: Text


class Tried(StrictModel):
    """A task that scripted models attempt; `Rolled.task` is its number."""

    event: Literal["tried"] = "tried"
    task: int
    member: Text  # of a group of environments
    example_id: int | Text
    answer: Text


class Rolled(StrictModel):
    """One rollout of a scripted model."""

    event: Literal["rolled"] = "rolled"
    probe: Text
    task: int
    reward: float | None
    metrics: dict[Text, float | None] = Field(default_factory=dict)
    error: Text | None = None  # its class
    message: Text = ""
    turns: int = 0
    replies: Text = ""  # a digest of what the environment said


class BatchCost(StrictModel):
    """What a batch of rollouts cost."""

    event: Literal["batch"] = "batch"
    probe: Text
    rollouts: int
    seconds: float
    longest_pause: float  # of the event loop, in seconds


class Halted(StrictModel):
    """Rollouts cannot be run at all, by the environment's own account."""

    event: Literal["halted"] = "halted"
    error: Text


class Closed(StrictModel):
    event: Literal["closed"] = "closed"
    error: Text | None


Event = Annotated[
    Found | Read | SideEffect | Imported | Loaded | Rows | BatchStarted | Tried | Rolled | BatchCost | Halted | Closed,
    Field(discriminator="event"),
]
EVENT: TypeAdapter[Event] = TypeAdapter(Event)
