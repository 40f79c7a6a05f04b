"""`[wandb]` and `[trackio]`: where else the numbers of a run go. Torch-free, so that configs load fast."""

from __future__ import annotations

from pydantic import Field

from whet.config import StrictModel


class WandbConfig(StrictModel):
    """`[wandb]`: track the run with Weights & Biases. The key is read from WANDB_API_KEY and never saved."""

    project: str = Field("whet", min_length=1, description="Project that the run belongs to.")
    name: str | None = Field(None, min_length=1, description="Name of the run there; the run's name if absent.")
    entity: str | None = Field(None, min_length=1, description="User or team; the key's own if absent.")
    group: str | None = Field(None, min_length=1, description="Runs of one group are shown together.")
    tags: tuple[str, ...] = Field((), description="Words to find the run by.")
    offline: bool = Field(False, description="Write into the run directory only; `wandb sync` sends it later.")
    samples_every: int = Field(0, ge=0, description="Steps between rollouts in a table of samples; 0 sends none.")


class TrackioConfig(StrictModel):
    """`[trackio]`: track the run with trackio, on this machine; `trackio show` shows it."""

    project: str = Field("whet", min_length=1, description="Project that the run belongs to.")
    name: str | None = Field(None, min_length=1, description="Name of the run there; the run's name if absent.")
    group: str | None = Field(None, min_length=1, description="Runs of one group are shown together.")
