"""Set up `.venv`: what `make install` runs, and `make quickstart` and `make test` before anything else.

Standard library only, and no newer Python than 3.7, because it has to be able to say that the Python it was started
with is too old. Decisions (which Python, which torch, whether anything has changed, what a pip failure means) are plain
functions over data; only `main` and what it calls touch the disk or start programs.

The order matters: torch first, chosen so that a machine without an NVIDIA GPU never downloads CUDA, then everything
else constrained to that torch and to the known-good versions of `requirements/constraints.txt`.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

OLDEST, NEWEST = (3, 11), (3, 14)
PYTHON_NAMES = ("python3", "python3.13", "python3.12", "python3.11", "python3.14", "python")
TORCH_VERSION = "2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_REQUIREMENT = re.compile(r"^(nvidia-|cuda-|triton|pytorch-triton)", re.IGNORECASE)
GB = 1024**3
QUERY_SECONDS = 120

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "whet-setup.json")
LOG = os.path.join(VENV, "whet-setup.log")
CONSTRAINTS = os.path.join(ROOT, "requirements", "constraints.txt")


class SetupError(Exception):
    """A mistake that the user has to fix: what was wrong and what to do about it."""


class Torch(NamedTuple):
    """A choice of torch: the arguments for pip (none: keep what is there), and why, in words."""

    arguments: tuple[str, ...]
    reason: str


# Decisions


def is_supported(version: Sequence[int]) -> bool:
    return OLDEST <= tuple(version[:2]) <= NEWEST


def choose_python(found: Mapping[str, Sequence[int]]) -> str:
    """The first of `found` (a command's name to its version, in order of preference) that whet runs on."""
    for name, version in found.items():
        if is_supported(version):
            return name
    wanted = "%d.%d to %d.%d" % (OLDEST + NEWEST)
    if not found:
        raise SetupError(f"no Python found; whet needs Python {wanted}. Install it, then run this again")
    listed = ", ".join(f"{name} is {'.'.join(map(str, version[:2]))}" for name, version in found.items())
    raise SetupError(
        f"whet needs Python {wanted}, but {listed}. Install one (Debian, Ubuntu: apt install python3 python3-venv; "
        "macOS: brew install python@3.13), or name it: make install PYTHON=/path/to/python3"
    )


def is_cuda_build(report: Mapping[str, Any]) -> bool:
    """Whether the torch in a `pip install --report` would bring CUDA: it says so by version or by what it requires."""
    for item in report.get("install", ()):
        metadata = item["metadata"]
        if metadata["name"].lower() != "torch":
            continue
        local = metadata["version"].partition("+")[2]
        if local.startswith(("cu", "rocm")):
            return True
        requirements = metadata.get("requires_dist") or ()
        return any(CUDA_REQUIREMENT.match(line) and "extra ==" not in line for line in requirements)
    raise SetupError("pip's report does not name torch; set WHET_TORCH to choose a build yourself (see README.md)")


def choose_torch(wish: str, system: str, has_gpu: bool, report: Mapping[str, Any] | None) -> Torch:
    """Which torch to install.

    `wish` is WHET_TORCH; `report` is pip's report about the plain package, made only on Linux without a GPU, and
    None where the configured indexes could not say.
    """
    plain = f"torch=={TORCH_VERSION}"
    if wish == "skip":
        return Torch((), "kept as it is (WHET_TORCH=skip)")
    if wish and wish != "default":
        return Torch(tuple(shlex.split(wish)), f"from WHET_TORCH: {wish}")
    if system != "Linux":
        return Torch((plain,), "for " + ("macOS" if system == "Darwin" else system))
    if has_gpu:
        return Torch((plain,), "CUDA build, because there is an NVIDIA GPU")
    if report is not None and not is_cuda_build(report):
        return Torch(("--no-deps", plain), "CPU build")
    # Without dependencies: that index need not have the known-good versions of them; the next step installs those.
    return Torch(("--no-deps", "--index-url", TORCH_CPU_INDEX, plain + "+cpu"), "CPU build from PyTorch's own index")


def fingerprint(contents: Iterable[bytes], facts: Sequence[str]) -> str:
    """One hash of everything that decides what is in the virtual environment."""
    digest = hashlib.sha256()
    for item in [*contents, *(fact.encode() for fact in facts)]:
        digest.update(b"%d:" % len(item) + item)
    return digest.hexdigest()


def effective_wish(asked: str | None, stamp: Mapping[str, Any]) -> str:
    """The wish for torch: what WHET_TORCH says now, else what it said when the environment was made."""
    return asked.strip() if asked is not None and asked.strip() else str(stamp.get("torch", "default"))


def own_constraints(committed: str, torch_version: str | None) -> str:
    """The committed constraints with torch held at the version that is installed."""
    kept = [line for line in committed.splitlines() if not line.startswith(("#", "torch=="))]
    if torch_version:
        kept.append(f"torch=={torch_version}")
    return "\n".join(kept) + "\n"


def needed_space(installed: bool, has_gpu: bool) -> float:
    """GB that the file system of `.venv` has to have free."""
    if installed:
        return 0.3
    return 9.0 if has_gpu else 2.5


FAILURES = (
    (r"No space left on device|Errno 28", "the disk is full. Free some space (about 2.5 GB) and run this again"),
    (
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "a certificate was refused. Behind a proxy of your own, point pip at its certificate: PIP_CERT=/path/to/ca.pem",
    ),
    (
        r"NameResolutionError|Temporary failure in name resolution|NewConnectionError|ConnectTimeout|ReadTimeout"
        r"|Network is unreachable|Could not resolve|ProxyError|Connection (refused|reset)|Name or service not known",
        "the package index could not be reached. Check the network (or pip's index-url and proxy) and run this again",
    ),
    (r"Permission denied|Errno 13", "a file could not be written. Check who owns this directory and .venv"),
)


def explain_failure(doing: str, output: str) -> str:
    """What a failed pip means, in one line where its output is of a known kind, else its last lines."""
    for pattern, meaning in FAILURES:
        if re.search(pattern, output):
            if "reached" in meaning and TORCH_CPU_INDEX in output + doing:
                meaning += f". PyTorch's CPU builds come from {TORCH_CPU_INDEX}; to take another build, set WHET_TORCH"
            return f"{doing} failed: {meaning}"
    tail = [line for line in output.strip().splitlines() if line.strip()][-12:]
    return "\n".join([f"{doing} failed. pip said:", *(f"  {line}" for line in tail)])


def cuda_surprise(names: Iterable[str], wish: str, has_gpu: bool) -> str | None:
    """A warning when CUDA packages are installed that were not requested and that no GPU can use."""
    found = sorted(name for name in names if name.lower().startswith("nvidia-"))
    if has_gpu or wish != "default" or not found:
        return None
    return (
        f"{len(found)} CUDA packages ({found[0]}, ...) are in .venv though this machine has no NVIDIA GPU. Remove "
        ".venv and run this again, or set WHET_TORCH=skip to keep them"
    )


# Edges


def say(message: str) -> None:
    print(f"whet setup: {message}", flush=True)


def identify(python: str) -> tuple[str, tuple[int, ...]] | None:
    """The interpreter behind a command (past virtual environments and version managers) and its version."""
    code = "import sys; print(getattr(sys, '_base_executable', sys.executable)); print(*sys.version_info[:3])"
    answer = ask([python, "-c", code], 30)
    if answer is None:
        return None  # version managers leave commands behind that only print an error
    path, version = answer.splitlines()
    return path, tuple(int(part) for part in version.split())


def find_pythons(named: str) -> dict[str, tuple[int, ...]]:
    """Versions of the Pythons on this machine, the requested one first; stops at the first suitable one."""
    found: dict[str, tuple[int, ...]] = {}
    names = (named,) if named not in PYTHON_NAMES else (named, *(name for name in PYTHON_NAMES if name != named))
    for name in names:
        command = shutil.which(name)
        identity = identify(command) if command is not None else None
        if identity is not None:
            path, version = identity
            found[path] = version
            if is_supported(version):
                break
    if not found and named not in PYTHON_NAMES:
        raise SetupError(f"PYTHON={named}: there is no such program, or it does not start")
    return found


def has_nvidia_gpu() -> bool:
    if sys.platform == "darwin":
        return False
    if glob.glob("/dev/nvidia[0-9]*"):
        return True
    tool = shutil.which("nvidia-smi")
    return tool is not None and "GPU" in (ask([tool, "-L"], 20) or "")


def environment_packages() -> list[str]:
    """The example environments, as directories."""
    found = glob.glob(os.path.join(ROOT, "environments", "*", "pyproject.toml"))
    return [os.path.dirname(path) for path in sorted(found)]


def refuse_old_venv() -> None:
    """A `.venv` that was not created by this script is used, but never deleted."""
    identity = identify(venv_python())
    if identity is None or not is_supported(identity[1]):
        words = "broken" if identity is None else "of Python %d.%d" % identity[1][:2]
        raise SetupError(f".venv is {words}. Remove it (rm -r .venv) and run this again")


def venv_python() -> str:
    return os.path.join(VENV, "bin", "python")


def read_stamp() -> dict[str, Any]:
    """What the last set-up recorded; empty when there was none. Its `key` is empty when that set-up did not finish."""
    try:
        with open(STAMP, encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def current_key(wish: str, python: str) -> str:
    paths = [os.path.join(ROOT, "pyproject.toml"), CONSTRAINTS, os.path.abspath(__file__)]
    paths += [os.path.join(directory, "pyproject.toml") for directory in environment_packages()]
    contents = []
    for path in paths:
        with open(path, "rb") as file:
            contents += [path.encode(), file.read()]
    return fingerprint(contents, [ROOT, wish, python, platform.system(), platform.machine()])


def write_atomically(path: str, text: str) -> None:
    aside = path + ".new"
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(aside, path)


@contextlib.contextmanager
def only_one(folder: str, shared: bool = False) -> Iterator[None]:
    """Hold a directory, so that two `make` at once do not write into one `.venv`; `shared` with others who read it."""
    handle, lock = os.open(folder, os.O_RDONLY), fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(handle, lock | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another set-up of {folder}")
            fcntl.flock(handle, lock)
        yield
    finally:
        os.close(handle)


def check_space(installed: bool, has_gpu: bool) -> None:
    needed = needed_space(installed, has_gpu)
    for place, share, remedy in (
        (ROOT, needed, "Free some space"),
        (tempfile.gettempdir(), min(needed, 1.0), "Free some space, or set TMPDIR to a larger disk"),
    ):
        free = shutil.disk_usage(place).free / GB
        if free < share:
            raise SetupError(
                f"{place} has {free:.1f} GB free and {share:.1f} GB are needed. {remedy}, then run this again"
            )


def run_merged(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program with nothing on standard input and everything that it says in `stdout`."""
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def ask(command: Sequence[str], seconds: float | None = None) -> str | None:
    """What a program answers on standard output; None when it fails, or takes longer than `seconds`."""
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=seconds,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def make_venv(python: str, system_packages: bool) -> None:
    arguments = [python, "-m", "venv", "--clear", VENV]
    if system_packages:
        arguments.insert(3, "--system-site-packages")
    made = run_merged(arguments)
    if made.returncode == 0:
        return
    shutil.rmtree(VENV, ignore_errors=True)  # half made, and it would be taken for a good one
    if "ensurepip" in made.stdout or "No module named venv" in made.stdout:
        raise SetupError(
            f"{python} cannot make virtual environments. Debian, Ubuntu: apt install {os.path.basename(python)}-venv"
        )
    raise SetupError(explain_failure(f"{python} -m venv", made.stdout))


def pip(doing: str, *arguments: str) -> None:
    """Run pip in `.venv` with its output in the log. Raises `SetupError` with what the failure means."""
    command = [venv_python(), "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "2", *arguments]
    done = run_merged(command)
    with open(LOG, "a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n{done.stdout}\n")
    if done.returncode != 0:
        where = f"{doing} ({TORCH_CPU_INDEX})" if TORCH_CPU_INDEX in arguments else doing
        raise SetupError(f"{explain_failure(where, done.stdout)}\n  (everything it said: {LOG})")


def ask_about_torch() -> dict[str, Any] | None:
    """pip's report on the plain torch package: what the configured indexes would give. Downloads metadata at most.

    Where an index serves no metadata of its own, `fast-deps` reads it out of the wheel by range requests; without
    that, pip would fetch the whole CUDA wheel only to describe it.
    """
    command = [venv_python(), "-m", "pip", "--disable-pip-version-check", "--no-input", "--retries", "1", "install"]
    command += ["--dry-run", "--no-deps", "--ignore-installed", "--only-binary=:all:", "--use-feature=fast-deps"]
    command += ["--quiet", "--report", "-", f"torch=={TORCH_VERSION}"]
    answer = ask(command, QUERY_SECONDS)
    if answer is None:
        return None
    report = json.loads(answer)
    return report if isinstance(report, dict) else None


def installed_versions() -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions() if d.metadata['Name']}))"
    )
    answer = ask([venv_python(), "-c", code])
    if answer is None:
        raise SetupError(".venv does not start. Remove it (rm -r .venv) and run this again")
    versions = json.loads(answer)
    return {str(name).lower(): str(version) for name, version in versions.items()}


def install_torch(wish: str, has_gpu: bool) -> str | None:
    """Put torch into `.venv` and return its version."""
    there = installed_versions().get("torch")
    if wish == "default" and there is not None and there.partition("+")[0] == TORCH_VERSION:
        return there
    ask = wish == "default" and platform.system() == "Linux" and not has_gpu
    choice = choose_torch(wish, platform.system(), has_gpu, ask_about_torch() if ask else None)
    say(f"torch: {choice.reason}")
    if choice.arguments:
        pip("installing torch", "install", *choice.arguments)
    return installed_versions().get("torch")


def verify(wish: str, has_gpu: bool) -> str:
    """Import what training needs; returns one line about it."""
    code = "import torch, transformers, whet; print(torch.__version__, 'CUDA' if torch.cuda.is_available() else 'CPU')"
    tried = subprocess.run([venv_python(), "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if tried.returncode != 0:
        last = (tried.stderr.strip().splitlines() or ["no message"])[-1]
        hint = " WHET_TORCH=skip was given: is torch in that Python?" if wish == "skip" else ""
        raise SetupError(f"everything is installed but does not import: {last}.{hint}")
    complaint = cuda_surprise(installed_versions(), wish, has_gpu)
    if complaint:
        raise SetupError(complaint)
    return "torch " + " on ".join(tried.stdout.split()[-2:])


def install(wish: str) -> None:
    """Install the project's requirements into `.venv`; returns at once when nothing has changed."""
    started = time.monotonic()
    stamp = read_stamp()
    usable = os.access(venv_python(), os.X_OK)
    named = os.environ.get("PYTHON", "").strip() or "python3"
    if usable and stamp.get("root") == ROOT and stamp.get("named") == named:
        python = str(stamp["python"])
        if stamp.get("key") == current_key(wish, python):
            return
    python = choose_python(find_pythons(named))
    if usable and stamp and (stamp.get("root") != ROOT or stamp.get("python") != python):
        usable = False  # virtual environments cannot be moved, and keep the Python they were made with
    if usable and not stamp:
        refuse_old_venv()
    has_gpu = has_nvidia_gpu()
    check_space(usable, has_gpu)
    if usable:
        say("something changed since the last set-up; bringing .venv up to date")
    else:
        say(f"making .venv with {python} (once; about 0.5 GB to download)")
        make_venv(python, system_packages=wish == "skip")
    record = {"key": "", "root": ROOT, "python": python, "named": named, "torch": wish}
    write_atomically(STAMP, json.dumps(record))  # without a key: from here to the end, .venv is between two states
    with open(CONSTRAINTS, encoding="utf-8") as file:
        committed = file.read()
    tools = os.path.join(VENV, "whet-constraints.txt")
    write_atomically(tools, own_constraints(committed, None))
    pip("installing pip and the build tools", "install", "-c", tools, "pip", "setuptools", "hatchling", "editables")
    version = install_torch(wish, has_gpu)
    write_atomically(tools, own_constraints(committed, version))
    say("installing whet, its tools and the example environments")
    packages = [argument for directory in environment_packages() for argument in ("-e", directory)]
    pip("installing whet", "install", "-c", tools, "--no-build-isolation", "-e", ROOT + "[all,dev]", *packages)
    line = verify(wish, has_gpu)
    write_atomically(STAMP, json.dumps({**record, "key": current_key(wish, python)}))
    say(f"ready in {time.monotonic() - started:.0f} s ({line})")


def main() -> int:
    try:
        with only_one(ROOT):
            install(effective_wish(os.environ.get("WHET_TORCH"), read_stamp()))
    except SetupError as error:
        print(f"whet setup: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        full = "the disk is full" if error.errno == 28 else str(error)
        print(f"whet setup: error: {full}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nwhet setup: interrupted; run it again to finish", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
