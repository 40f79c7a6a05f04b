"""`load_environment` of an id that pins a package down: what is installed from there, or a refusal that names both."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import whet
from whet.envs.identity.record import digest_of_files, identify, identity_differences
from whet.errors import EnvironmentLoadError

CODE = """
import whet


def load_environment():
    return whet.SingleTurnEnv(dataset=[{"question": "1", "answer": "1"}], rubric=whet.Rubric())
"""
HASH, COMMIT = "ab" * 32, "0123456789" * 4
FILE = "whet_test_pinned-1.0-py3-none-any.whl"
HUB = f"https://hub.test/files/alice/whet-test-pinned/1.0/{FILE}"
Install = Callable[..., Path]


def archive(url: str = HUB) -> dict[str, Any]:
    return {"url": url, "archive_info": {"hash": f"sha256={HASH}", "hashes": {"sha256": HASH}}}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Lays out a package as pip leaves it, with the `direct_url.json` that is given; returns its folder."""
    monkeypatch.chdir(tmp_path)

    def install(direct_url: dict[str, Any] | None, code: str = CODE, version: str = "1.0") -> Path:
        site = tmp_path / "site"
        info = f"whet_test_pinned-{version}.dist-info"
        files = {
            "whet_test_pinned.py": code,
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: whet-test-pinned\nVersion: {version}\n",
        }
        if direct_url is not None:
            files[f"{info}/direct_url.json"] = json.dumps(direct_url)
        (site / info).mkdir(parents=True)
        record = ""
        for name, text in files.items():
            (site / name).write_text(text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(text)}\n"
        (site / info / "RECORD").write_text(f"{record}{info}/RECORD,,\n")
        monkeypatch.syspath_prepend(str(site))
        return site

    yield install
    sys.modules.pop("whet_test_pinned", None)


def refusal(environment: str) -> str:
    with pytest.raises(EnvironmentLoadError) as raised:
        whet.load_environment(environment)
    assert "whet_test_pinned" not in sys.modules, "code of a refused package ran"
    return str(raised.value)


@pytest.mark.parametrize(
    "environment",
    [
        "whet-test-pinned",
        "whet-test-pinned@1.0",
        "whet_test_pinned@1.0.0",
        "alice/whet-test-pinned",
        "alice/whet-test-pinned@1.0",
        f"{HUB}#sha256={HASH}",
        f"https://elsewhere.test/{FILE}#sha256={HASH}",
    ],
)
def test_what_was_asked_for_is_loaded(install: Install, environment: str) -> None:
    install(archive())
    env = whet.load_environment(environment)
    assert env.env_id == environment


@pytest.mark.parametrize(
    "environment",
    [
        "alice/whet-test-pinned@9.9",
        "mallory/whet-test-pinned",
        "mallory/whet-test-pinned@1.0",
        "whet-test-pinned@1.1",
        f"{HUB}#sha256={'cd' * 32}",
        f"whet-test-pinned @ git+https://host/envs@{COMMIT}",
    ],
)
def test_another_package_is_refused_with_what_is_installed(install: Install, environment: str) -> None:
    install(archive())
    message = refusal(environment)
    assert "installed is alice/whet-test-pinned@1.0" in message
    assert f"whet env install '{environment}'" in message


@pytest.mark.parametrize(
    ("direct_url", "says"),
    [
        (None, "whet-test-pinned 1.0, with no record of where it came from"),
        (archive(f"https://host/{FILE}"), f"whet-test-pinned 1.0 from https://host/{FILE}"),
        (archive(f"file:///files/alice/whet-test-pinned/1.0/{FILE}"), "whet-test-pinned 1.0 from file:///files/alice"),
        (archive(f"https://hub.test/files/alice/other/1.0/{FILE}"), "1.0 from https://hub.test/files/alice/other"),
        (archive(f"https://hub.test/files/alice/whet-test-pinned/2.0/{FILE}"), "1.0 from https://hub.test"),
        ({"url": HUB, "archive_info": {}}, f"whet-test-pinned 1.0 from {HUB}"),
        ({"url": "file:///home/game", "dir_info": {"editable": True}}, "from file:///home/game (editable)"),
        ({"broken": 1}, "whet-test-pinned 1.0, with no record"),
    ],
)
def test_a_package_that_is_not_from_a_hub_has_no_owner(
    install: Install, direct_url: dict[str, Any] | None, says: str
) -> None:
    install(direct_url)
    assert says in refusal("alice/whet-test-pinned@1.0")


def test_nothing_installed_is_said_with_the_command_that_installs_it(tmp_path: Path) -> None:
    message = refusal("alice/whet-test-pinned@1.0")
    assert "no package whet-test-pinned is installed" in message
    assert "whet env install 'alice/whet-test-pinned@1.0'" in message


def test_a_folder_here_does_not_stand_for_an_owner_or_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "environments" / "whet-test-pinned"
    folder.mkdir(parents=True)
    (folder / "whet_test_pinned.py").write_text(CODE)
    for environment in ("alice/whet-test-pinned", "whet-test-pinned@1.0"):
        assert "no package whet-test-pinned is installed" in refusal(environment)


def test_a_module_that_hides_the_package_is_refused(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(archive())
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "whet_test_pinned.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path / "hiding"))
    assert "which is no file of the installed alice/whet-test-pinned@1.0" in refusal("alice/whet-test-pinned")


def test_a_file_that_was_changed_after_the_installation_is_refused(install: Install) -> None:
    (install(archive()) / "whet_test_pinned.py").write_text(CODE + "\n")
    assert "whet_test_pinned.py was changed since alice/whet-test-pinned@1.0" in refusal("alice/whet-test-pinned")
    assert whet.load_environment("whet-test-pinned")  # a plain name loads what is there


def test_a_commit_is_compared_with_its_repository(install: Install) -> None:
    repository = {"vcs_info": {"vcs": "git", "commit_id": COMMIT}, "subdirectory": "game"}
    install({"url": "https://host/envs.git", **repository})
    named = "whet-test-pinned @ git+https://{}@{}#subdirectory={}"
    for others in (("host/envs", "f" * 40, "game"), ("host/other", COMMIT, "game"), ("host/envs", COMMIT, "more")):
        assert f"from https://host/envs.git at {COMMIT}" in refusal(named.format(*others))
    assert whet.load_environment(named.format("host/envs", COMMIT, "game"))


def test_the_identity_of_a_package_of_a_hub_has_owner_and_wheel(install: Install) -> None:
    site = install(archive())
    found = identify("whet-test-pinned")
    assert (found.owner, found.version, found.wheel, found.path) == ("alice", "1.0", HASH, None)
    assert found.content == digest_of_files(site / "whet_test_pinned.py")
    assert identity_differences(found.as_dict(), identify("alice/whet-test-pinned@1.0").as_dict()) == []
    (site / "whet_test_pinned.py").write_text(CODE + "\n")
    (line,) = identity_differences(found.as_dict(), identify("whet-test-pinned").as_dict())
    assert line.startswith(f"content: was '{found.content}', is ")


def test_the_identity_of_a_folder_is_its_path_and_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        package = tmp_path / name / "whet-test-pinned" / "whet_test_pinned"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(CODE)
    first, second = (identify(f"{name}/whet-test-pinned") for name in "ab")
    assert first.path == str(tmp_path / "a" / "whet-test-pinned" / "whet_test_pinned")
    assert (first.owner, first.wheel) == (None, None)
    assert identity_differences(first.as_dict(), second.as_dict()) == []
    (tmp_path / "b" / "whet-test-pinned" / "whet_test_pinned" / "words.txt").write_text("more\n")
    assert len(identity_differences(first.as_dict(), identify("b/whet-test-pinned").as_dict())) == 1
