"""`whet train models` and `configs`: what can be trained, and config files to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whet.cli.output import JsonOption, extra, print_result
from whet.cli.sharing.common import HubOption, safe


def models(hub: HubOption = None, json_output: JsonOption = False) -> None:
    """List the models that are ready: on the service, or without one on this machine. Others are fetched on first use.

    \b
    Example:
      whet train models
    """
    from whet.service.client.connection import ask_service, connect_service, service_is_set

    if hub is None and not service_is_set():
        with extra("train", "listing models"):
            from whet.models.local_models import local_models

            print_result({"models": local_models()}, json_output)
        return
    with connect_service(hub) as service:
        found = ask_service(service).models
        print_result(safe({"models": [{"model": name, "where": service.url} for name in found]}), json_output)


def configs(
    folder: Annotated[Path, typer.Argument(help="Folder to look below.")] = Path("configs"),
    json_output: JsonOption = False,
) -> None:
    """List the training configs below a folder: file, model, environments or data, and whether each can be read.

    \b
    Examples:
      whet train configs
      whet train configs my-configs --json
    """
    from whet.errors import ConfigError

    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder. `whet lab setup` makes one with configs to begin with.")
    rows = [row for file in sorted(folder.rglob("*.toml")) if (row := _config_row(file)) is not None]
    print_result({"configs": rows}, json_output)
    if not rows and not json_output:
        typer.echo(f"no training config below {folder}. `whet lab setup` makes some to begin with.")


def _config_row(file: Path) -> dict[str, Any] | None:
    """None for a file that is no config of training."""
    from whet.config import read_toml
    from whet.errors import WhetError

    try:
        data = read_toml(file)
    except WhetError as error:
        return {"file": str(file), "command": "", "model": "", "learns from": "", "steps": "", "problem": str(error)}
    sections = data.get("env")
    if isinstance(data.get("data"), dict):
        command, source = "sft", str(data["data"].get("path") or data["data"].get("dataset") or "")
    elif isinstance(sections, list) and ("batch_size" in data or "max_steps" in data):
        named = [section for section in sections if isinstance(section, dict)]
        command, source = "run", ", ".join(str(section.get("id", "?")) for section in named)
    else:
        return None
    steps = data.get("max_steps", data.get("num_epochs", ""))
    model = data.get("model", "whet/tiny")
    return {"file": str(file), "command": f"train {command}", "model": model, "learns from": source, "steps": steps}
