"""Wheels of environments on a hub: from `owner/name[@version]` to a URL with its hash. See docs/design/hub.md.

The hub is `WHET_HUB`, a URL; private environments need a token with the scope `read` in `WHET_HUB_TOKEN`.
"""

from __future__ import annotations

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from whet.envs.identity.ids import EnvironmentId, parse_id
from whet.errors import ConfigError, EnvironmentLoadError

HUB, TOKEN = "WHET_HUB", "WHET_HUB_TOKEN"
TIMEOUT_S, LONGEST_ANSWER = 30, 1 << 20


def find_wheel(wanted: EnvironmentId) -> EnvironmentId:
    """The wheel that an id with an owner stands for, the newest version where it names none.

    Raises `ConfigError` where there is no hub, it has no such version, or its answer is not of that environment.
    """
    hub = os.environ.get(HUB, "").rstrip("/")
    if not hub.startswith(("http://", "https://")):
        raise ConfigError(
            f"'{wanted.text}' is an environment of a hub. Set {HUB} to the hub's URL (and {TOKEN} for a private one)."
        )
    below = f"{hub}/api/v1/environments/{wanted.owner}/{quote(wanted.name)}"
    version = wanted.version or _text(_get(wanted, below), "latest")
    if version is None:
        raise ConfigError(f"{hub} has no version of '{wanted.text}' that is not withdrawn.")
    answer = _get(wanted, f"{below}/versions/{quote(version)}")
    try:
        wheel = parse_id(_text(answer, "requirement") or "")
    except EnvironmentLoadError:
        wheel = None
    mine = f"/files/{wanted.owner}/{wanted.name}/{version}/"
    if wheel is None or wheel.git or wheel.url is None or not wheel.url.startswith(f"{hub}{mine}"):
        raise ConfigError(f"{hub} answered with no wheel of '{wanted.text}'. Is {HUB} the URL of a hub?")
    return wheel


@contextmanager
def credentials_for_pip() -> Iterator[dict[str, str]]:
    """The variables of a pip that may read from the hub. The token is neither an argument nor kept by pip."""
    hub, token = os.environ.get(HUB, ""), os.environ.get(TOKEN, "")
    environment = {name: value for name, value in os.environ.items() if name != TOKEN}
    host = urlsplit(hub).hostname
    if not token or host is None:
        yield environment
        return
    with tempfile.TemporaryDirectory(prefix="whet-netrc-") as folder:
        file = Path(folder, "netrc")
        file.touch(mode=0o600)
        file.write_text(f"machine {host} login __token__ password {token}\n", encoding="utf-8")
        yield environment | {"NETRC": str(file)}


def _get(wanted: EnvironmentId, url: str) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    if token := os.environ.get(TOKEN):
        headers["Authorization"] = f"Bearer {token}"
    try:
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
            found = json.loads(answer.read(LONGEST_ANSWER))
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise ConfigError(
                f"the hub has no '{wanted.text}', or {TOKEN} may not read it (whet env list shows what is here)."
            ) from None
        raise ConfigError(f"{url}: the hub answered with status {error.code}.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{url} cannot be read ({getattr(error, 'reason', None) or error}). Check {HUB}.") from None
    return found if isinstance(found, dict) else {}


def _text(answer: dict[str, Any], key: str) -> str | None:
    found = answer.get(key)
    return found if isinstance(found, str) and found else None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token goes to the hub alone."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
