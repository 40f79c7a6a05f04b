"""Where the control groups of sandboxes are made and what is written there, on trees of plain files.

The groups of this machine, with a kernel behind them: tests/security/escape. Which version that is depends on the
machine; these tests are what covers the other.
"""

from __future__ import annotations

from pathlib import Path

from whet.sandboxes.bubblewrap import cgroups

SCOPE = "user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"


class System:
    """A /proc and a /sys/fs/cgroup."""

    def __init__(self, root: Path, own: str, mounts: str) -> None:
        self.root = root
        self.write("proc/self/cgroup", own)
        self.write("proc/self/mounts", mounts)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def group(self, path: str, controllers: str = "cpu memory pids", enabled: str = "") -> None:
        """A group of version 2 that this user may write to."""
        base = f"sys/fs/cgroup/{path}".rstrip("/")
        self.write(f"{base}/cgroup.procs", "")
        self.write(f"{base}/cgroup.controllers", controllers)
        self.write(f"{base}/cgroup.subtree_control", enabled)

    def full(self, path: str) -> None:
        """A group that has processes: the kernel refuses to switch controllers on. A folder refuses to be written."""
        self.group(path)
        control = self.root / f"sys/fs/cgroup/{path}/cgroup.subtree_control"
        control.unlink()
        control.mkdir()

    def make(self) -> cgroups.Cgroup | None:
        return cgroups.make("1-1", 1 << 20, 40, 0.5, self.root)


def unified(root: Path, own: str) -> System:
    return System(root, f"0::/{own}\n", "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\nproc /proc proc rw 0 0\n")


def test_version_2_makes_groups_beside_our_own_which_has_processes(tmp_path: Path) -> None:
    system = unified(tmp_path, SCOPE)
    system.full(SCOPE)
    system.group(str(Path(SCOPE).parent), enabled="cpu memory pids")
    made = system.make()
    assert made is not None
    base = f"sys/fs/cgroup/{Path(SCOPE).parent}/whet-1-1"
    assert set(made.directories.values()) == {tmp_path / base}
    assert {file.name: file.read_text() for file in (tmp_path / base).iterdir()} == {
        "memory.max": "1048576",
        "memory.swap.max": "0",
        "pids.max": "40",
        "cpu.max": "50000 100000",
    }


def test_version_2_switches_on_what_is_there_and_off(tmp_path: Path) -> None:
    system = unified(tmp_path, "")
    system.group("", controllers="cpuset memory pids", enabled="pids")
    made = system.make()
    assert made is not None
    assert sorted(made.directories) == ["memory", "pids"]
    assert system.read("sys/fs/cgroup/cgroup.subtree_control") == "+memory"


def test_version_2_prefers_the_group_above_that_has_more_controllers(tmp_path: Path) -> None:
    system = unified(tmp_path, "a/b")
    system.full("a/b")
    system.group("a", controllers="pids")
    system.group("", controllers="cpu memory pids")
    made = system.make()
    assert made is not None
    assert set(made.directories.values()) == {tmp_path / "sys/fs/cgroup/whet-1-1"}


def test_version_2_without_a_group_to_write_to_has_no_groups(tmp_path: Path) -> None:
    system = unified(tmp_path, SCOPE)
    (tmp_path / "sys/fs/cgroup" / SCOPE).mkdir(parents=True)
    assert system.make() is None


def test_version_1_makes_a_group_for_each_controller_below_our_own(tmp_path: Path) -> None:
    mounts = "".join(f"cgroup /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n" for name in ("memory", "pids", "cpu"))
    mounts += "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
    system = System(tmp_path, "3:memory:/own\n2:pids:/\n1:cpu:/gone\n0::/\n", mounts)
    for name in ("memory/own", "pids", "cpu"):
        (tmp_path / "sys/fs/cgroup" / name).mkdir(parents=True)
    made = system.make()
    assert made is not None
    assert made.version == 1
    assert system.read("sys/fs/cgroup/memory/own/whet-1-1/memory.limit_in_bytes") == "1048576"
    assert system.read("sys/fs/cgroup/memory/own/whet-1-1/memory.memsw.limit_in_bytes") == "1048576"
    assert system.read("sys/fs/cgroup/pids/whet-1-1/pids.max") == "40"
    assert system.read("sys/fs/cgroup/cpu/whet-1-1/cpu.cfs_quota_us") == "50000"


def test_a_process_is_put_into_every_group(tmp_path: Path) -> None:
    system = unified(tmp_path, "")
    system.group("")
    made = system.make()
    assert made is not None
    made.add(77)
    assert system.read("sys/fs/cgroup/whet-1-1/cgroup.procs") == "77"


def test_what_the_kernel_counts_is_read(tmp_path: Path) -> None:
    system = unified(tmp_path, "")
    system.group("")
    made = system.make()
    assert made is not None
    assert (made.killed_for_memory(), made.refused_processes()) == (0, 0)
    system.write("sys/fs/cgroup/whet-1-1/memory.events", "low 0\nhigh 0\nmax 8\noom 3\noom_kill 2\n")
    system.write("sys/fs/cgroup/whet-1-1/pids.events", "max 5\n")
    assert (made.killed_for_memory(), made.refused_processes()) == (2, 5)


def test_groups_of_processes_that_are_gone_are_swept_and_others_stay(tmp_path: Path) -> None:
    system = unified(tmp_path, "")
    system.group("")
    for name in ("whet-11-1", "whet-22-1", "whet-other", "theirs-11-1"):
        (tmp_path / "sys/fs/cgroup" / name).mkdir()
    (tmp_path / "proc/22").mkdir()
    system.make()
    left = sorted(path.name for path in (tmp_path / "sys/fs/cgroup").iterdir() if path.is_dir())
    assert left == ["theirs-11-1", "whet-1-1", "whet-22-1", "whet-other"]


def test_a_system_without_control_groups_has_none(tmp_path: Path) -> None:
    assert System(tmp_path, "", "").make() is None
    assert cgroups.make("1-1", 1, 1, 1.0, tmp_path / "nothing") is None
