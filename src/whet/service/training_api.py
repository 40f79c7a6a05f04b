"""`whet service tinker`: the training API as a part of a service, with its users, its database and its pages.

Its own files are in a folder of the service, `tinker/`, in the layout of `whet tinker serve`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from whet.config import Option, parse_overrides, validate
from whet.errors import ConfigError
from whet.gateway.serve import address_of
from whet.parsing import parse_json
from whet.service.answers import TrainingApiAnswer
from whet.service.serve import given_or_listen
from whet.system.children import is_alive, this_process
from whet.system.files import expanded, json_line, write_whole
from whet.tinker.serve import TinkerConfig, check_config, load_model

FOLDER = "tinker"
STATUS = "server.json"


class TrainingApiConfig(TinkerConfig):
    """`whet service tinker`. Each description is the option's `--help`."""

    data: Annotated[Path, Option(metavar="DIR")] = Field(Path("service"), description="Folder of the service.")
    database: Annotated[str | None, Option(metavar="URL")] = Field(
        None, description="As for `whet service api`; if absent, hub.sqlite in DIR."
    )


def part_words(model: str, settings: Sequence[str]) -> list[str]:
    """The command of the part that serves a model; `settings` are KEY=VALUE.

    Raises `ConfigError`, `ModelLoadError`.
    """
    pairs: dict[str, Any] = dict(parse_overrides([f"--{one}" for one in settings]))
    for key in {"model", "data", "database", "host", "port"} & set(pairs):
        raise ConfigError(f"--tinker-setting {key}: it is an option of `whet service up` itself.")
    check_config(validate(TrainingApiConfig, {**pairs, "model": model}, "--tinker-setting"))
    return ["tinker", model, *(f"--{key.replace('_', '-')}={value}" for key, value in pairs.items())]


def serve_training_api(config: TrainingApiConfig, on_ready: Callable[[str, str], None]) -> None:
    """Serve until interrupted. `on_ready` gets the address and the base model's name once requests are answered.

    Raises `ConfigError` where there is no service in the folder or the port is taken, `ModelLoadError`.
    """
    from whet.hub.domain.cipher import Cipher, read_keys
    from whet.hub.domain.hub import Hub
    from whet.hub.opening import UPSTREAM
    from whet.hub.serve import run
    from whet.hub.storage.store import FileStore
    from whet.service.storage.tables import joined_database
    from whet.tinker.api.app import create_tinker_app
    from whet.tinker.opening import start_server

    data = expanded(config.data).absolute()
    opened = joined_database(data, config.database)
    with opened as database, given_or_listen(config.host, config.port) as listening:
        model = load_model(config)
        cipher, store = Cipher(*read_keys(data / "secrets.key")), FileStore(str(data / "files"))
        hub = Hub(database, store, cipher, data / "uploads", UPSTREAM)  # of which it uses users, database and key
        folder, address = data / FOLDER, address_of(listening)
        folder.mkdir(mode=0o700, exist_ok=True)
        with start_server(hub, folder, model.base, model.bank, model.limits, model.sampled) as server:
            about = {"url": address, "model": model.base.name, "started_at": time.time(), **this_process()}
            write_whole(folder / STATUS, json_line(about), durable=False)
            app = create_tinker_app(server, is_hub=False)
            run(app, listening, lambda: on_ready(address, model.base.name))
            (folder / STATUS).unlink(missing_ok=True)


def training_api_of(data: Path) -> TrainingApiAnswer | None:
    """The server of a service's folder, if one runs."""
    try:
        about = parse_json((data / FOLDER / STATUS).read_bytes())
    except (OSError, ValueError):
        return None
    return TrainingApiAnswer.model_validate(about) if is_alive(about) is not False else None
