"""SandboxUser ids of sandboxes: where they come from, and that no two sandboxes have the same one."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from whet.sandboxes.bubblewrap import users
from whet.sandboxes.bubblewrap.launch import Launcher
from whet.sandboxes.bubblewrap.users import Users, of_ranges, of_root


def files(root: Path, **contents: str) -> Path:
    for name, text in contents.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_root_takes_ids_that_no_account_has(tmp_path: Path) -> None:
    whole = "         0          0 4294967295\n"
    found = of_root(files(tmp_path, proc__self__uid_map=whole, proc__self__gid_map=whole))
    assert found == Users(users.FIRST, users.FIRST, users.COUNT, mapped=False)


def test_root_of_a_container_takes_ids_that_exist_there(tmp_path: Path) -> None:
    few = "0 1000 1\n1 100000 65536\n"
    found = of_root(files(tmp_path, proc__self__uid_map=few, proc__self__gid_map=few))
    assert found is not None
    assert found.uids > users.SYSTEM
    assert found.uids + found.count <= users.LAST_RESORT


def test_root_with_one_id_has_none_for_sandboxes(tmp_path: Path) -> None:
    assert of_root(files(tmp_path, proc__self__uid_map="0 1000 1\n", proc__self__gid_map="0 1000 1\n")) is None


def test_a_user_with_ranges_takes_ids_from_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    lines = "other:100000:65536\n4242:{}:{}\nbroken\n"
    root = files(tmp_path, etc__subuid=lines.format(300000, 65536), etc__subgid=lines.format(400000, 1000))
    assert of_ranges(4242, root) == Users(300000, 400000, 1000, mapped=True)
    assert of_ranges(4243, root) is None
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert of_ranges(4242, root) is None, "nothing hands them out"


def test_two_claims_never_have_the_same_id() -> None:
    few = Users(1_990_000_000, 1_990_000_000, 8, mapped=False)
    claims = [few.claim(random.Random(seed)) for seed in range(8)]
    claimed = [claim for claim in claims if claim is not None]
    assert len({claim.uid for claim in claimed}) == len(claimed) >= 4
    before = claimed[0].uid
    claimed[0].release()
    again = Users(before, before, 1, mapped=False).claim()
    assert again is not None
    for claim in (*claimed[1:], again):
        claim.release()


def test_owner_only_folder_uses_the_owners_id(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    ranges = Users(1_990_001_000, 1_990_001_000, 8, mapped=True)
    launcher = Launcher("/usr/bin/unshare", "/usr/bin/setpriv", ranges)
    claim = launcher.claim(["/usr/share"])
    assert claim is not None
    assert claim.held is not None
    private = launcher.claim([str(tmp_path)])
    assert private is None or private.held is None
    claim.release()
