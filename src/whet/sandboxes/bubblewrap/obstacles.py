"""Why bubblewrap does not start, and what has to be allowed: from its words and the settings of kernel and container.

Only reads; each cause that is named was found, and where none was found all that are known are listed.
"""

from __future__ import annotations

from pathlib import Path

from whet.sandboxes.install import install_command

KINDS = ("user", "pid", "net", "ipc", "uts", "mnt", "cgroup")
ALLOWED = 10000


def advice(said: str, program: str, root: Path = Path("/")) -> str:
    """What to do where `program` gave up with the words `said`. `root` is where the system's files begin."""
    if "Python" in said:
        return f"Install a Python that every user may run: {install_command('python3')}"
    causes = [*_of_the_kernel(program, root), *_of_the_container(said, root)]
    if causes:
        return f"{' '.join(causes)} Or use the docker backend."
    return (
        "The kernel has to allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 (Debian), "
        f"user.max_user_namespaces={ALLOWED}, kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); and a "
        "container --security-opt seccomp=unconfined. Or use the docker backend."
    )


def _of_the_kernel(program: str, root: Path) -> list[str]:
    settings = root / "proc/sys"
    if (root / "proc/self").exists() and not (root / "proc/self/ns/user").is_symlink():
        return ["This kernel has no user namespaces (CONFIG_USER_NS is off): use another one."]
    causes = []
    if _read(settings / "kernel/unprivileged_userns_clone") == "0":
        causes.append(
            "The kernel allows user namespaces to root alone: sudo sysctl -w kernel.unprivileged_userns_clone=1."
        )
    none = [f"user.max_{kind}_namespaces={ALLOWED}" for kind in KINDS if _none_allowed(settings, kind)]
    if none:
        causes.append(f"The kernel allows no namespaces of some kinds: sudo sysctl -w {' '.join(none)}.")
    if _read(settings / "kernel/apparmor_restrict_unprivileged_userns") == "1":
        causes.append(
            "AppArmor takes the rights in user namespaces from programs without a profile (Ubuntu's default): sudo "
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or a profile with 'userns,' for "
            f"{program} (man apparmor.d)."
        )
    return causes


def _of_the_container(said: str, root: Path) -> list[str]:
    if "proc" in said and ("mount" in said or "Operation not permitted" in said):
        return [
            "Parts of /proc are covered here, as in a container, and the kernel then allows no second /proc: start the "
            "container with --security-opt systempaths=unconfined (podman: unmask=ALL; Kubernetes: procMount: "
            "Unmasked)."
        ]
    causes = []
    if "Seccomp:\t2" in (_read(root / "proc/self/status") or ""):
        causes.append(
            "A seccomp filter is over this process, as containers have one: allow user namespaces with --security-opt "
            "seccomp=unconfined (Kubernetes: seccompProfile: type: Unconfined)."
        )
    profile = _read(root / "proc/self/attr/current") or ""
    if profile.endswith("(enforce)"):
        causes.append(
            f"The AppArmor profile {profile.split()[0]} confines this process: a container needs --security-opt "
            "apparmor=unconfined."
        )
    return causes


def _none_allowed(settings: Path, kind: str) -> bool:
    return _read(settings / f"user/max_{kind}_namespaces") == "0"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
