"""`whet env install owner/name[@version]` from a hub, and `load_environment` of what it installed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

import whet
from whet.cli.env import install_from_anywhere
from whet.envs.identity.record import identify
from whet.errors import EnvironmentLoadError, WhetError

MODULE = "word_game"


@pytest.fixture
def address(hub: Any, listening: Any, packages: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A hub on a loopback port with two versions of ann's private environment; this Python installs into a folder."""
    for version in ("1.0.0", "1.1.0"):
        assert hub.push("ann", "ann", packages.Wheel(version=version)).status_code == 201
    settings = {"TARGET": str(tmp_path / "site"), "NO_INDEX": "1", "CONFIG_FILE": "/dev/null", "NO_CACHE_DIR": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("WHET_HUB_TOKEN", hub.tokens["ann"])
    with listening(hub.app) as found:
        monkeypatch.setenv("WHET_HUB", found)
        yield found
    sys.modules.pop(MODULE, None)


def test_a_private_environment_is_installed_by_its_id_and_loaded_by_it_alone(
    address: str, hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install_from_anywhere("ann/word-game@1.0.0").version == "1.0.0"
    site = tmp_path / "site"
    record = (site / f"{MODULE}-1.0.0.dist-info" / "direct_url.json").read_text()
    assert json.loads(record)["url"] == f"{address}/files/ann/word-game/1.0.0/{MODULE}-1.0.0-py3-none-any.whl"
    assert hub.tokens["ann"] not in record

    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    for refused in ("ann/word-game@1.1.0", "bob/word-game@1.0.0"):
        with pytest.raises(EnvironmentLoadError, match=r"installed is ann/word-game@1\.0\.0"):
            whet.load_environment(refused)
    env = whet.load_environment("ann/word-game@1.0.0")
    assert len(env.get_dataset()) == 8
    found = identify("word-game")
    assert (found.owner, found.version) == ("ann", "1.0.0")
    assert found.wheel == json.loads(record)["archive_info"]["hashes"]["sha256"]


def test_without_a_version_the_newest_is_meant(address: str) -> None:
    assert install_from_anywhere("ann/word-game").source.startswith(
        f"word-game @ {address}/files/ann/word-game/1.1.0/{MODULE}-1.1.0-py3-none-any.whl#sha256="
    )


@pytest.mark.parametrize(
    ("environment", "variables", "says"),
    [
        ("ann/word-game@9.9.9", {}, "9.9.9"),
        ("ann/other", {}, "there is no environment ann/other here"),
        ("ann/word-game", {"WHET_HUB_TOKEN": ""}, "private environments need: whet login"),
        ("ann/word-game", {"WHET_HUB_TOKEN": "whet_wrong"}, "Log in with: whet login --hub"),
        ("ann/word-game", {"WHET_HUB": ""}, "whet login --hub URL"),
        ("ann/word-game", {"WHET_HUB": "file:///etc"}, "is no address of a hub"),
        ("ann/word-game", {"WHET_HUB": "http://127.0.0.1:1"}, "cannot be reached"),
    ],
)
def test_what_a_hub_does_not_give_is_one_line(
    address: str,
    environment: str,
    variables: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(WhetError) as raised:
        install_from_anywhere(environment)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "site").exists()
