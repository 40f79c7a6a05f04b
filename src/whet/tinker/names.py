"""How models of clients are called where they are shown as runs."""

from __future__ import annotations

from whet.tinker.storage.tables import TinkerModel, TinkerSession

MOST_CHARACTERS = 100
LIVE_S = 600.0
"""How long after its last sign of life a client's session counts as live."""
SILENT = "its client was not heard of for a while; it continues with the client's next request"
"""Why the run of a model is interrupted."""


def run_id(model: str) -> str:
    """Of the run of a model `SESSION:train:NUMBER`; the name of its folder."""
    return model.replace(":", "-")


def model_id(run: str) -> str:
    """The inverse of `run_id`; of another text, a text that is no model."""
    return run.replace("-", ":")


def shown_name(model: TinkerModel, session: TinkerSession | None) -> str:
    """`name` of the model's metadata, else the client's display name with the model's number, else the run's id.

    Names are a client's text: one line of at most 100 characters that can be printed.
    """
    number = model.id.rpartition(":")[2]
    display = str((session.details.get("display_name") if session is not None else None) or "")
    named = str((model.user_metadata or {}).get("name") or (display and f"{display} {number}"))
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in named).split())
    return line[:MOST_CHARACTERS] or run_id(model.id)
