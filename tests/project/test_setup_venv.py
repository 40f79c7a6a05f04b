"""What set-up decides: which Python, which torch, whether anything changed, what a failure of pip means."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_venv", ROOT / "scripts" / "setup_venv.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["setup_venv"] = module
    spec.loader.exec_module(module)
    return module


setup_venv = load_script()


def report(version: str, *requires: str) -> dict[str, Any]:
    return {"install": [{"metadata": {"name": "torch", "version": version, "requires_dist": list(requires)}}]}


CUDA = report("2.13.0", "filelock", 'nvidia-cudnn-cu13==9.20; platform_system == "Linux"', "triton==3.7")
CPU = report("2.13.0+cpu", "filelock", "sympy>=1.13.3", 'optree>=0.13.0; extra == "optree"')


def test_the_first_supported_python_is_taken() -> None:
    found = {"python3": (3, 9, 2), "python3.12": (3, 12, 1), "python3.11": (3, 11, 7)}
    assert setup_venv.choose_python(found) == "python3.12"


@pytest.mark.parametrize("version", [(3, 10), (3, 15), (2, 7)])
def test_an_unsupported_python_is_named_with_what_is_needed(version: tuple[int, int]) -> None:
    with pytest.raises(setup_venv.SetupError, match=rf"3\.11 to 3\.14, but python3 is {version[0]}\.{version[1]}"):
        setup_venv.choose_python({"python3": version})


def test_no_python_at_all_says_which_to_install() -> None:
    with pytest.raises(setup_venv.SetupError, match="no Python found"):
        setup_venv.choose_python({})


@pytest.mark.parametrize(
    ("answer", "cuda"),
    [
        (CUDA, True),
        (CPU, False),
        (report("2.13.0", "filelock"), False),
        (report("2.13.0+cu130", "filelock"), True),
        (report("2.13.0", "cuda-bindings<14"), True),
        (report("2.13.0", 'nvidia-ml-py; extra == "monitor"'), False),
    ],
)
def test_a_cuda_build_is_known_by_what_it_requires_or_calls_itself(answer: dict[str, Any], cuda: bool) -> None:
    assert setup_venv.is_cuda_build(answer) is cuda


def test_without_a_gpu_a_cpu_build_of_the_configured_indexes_is_taken() -> None:
    assert setup_venv.choose_torch("default", "Linux", False, CPU).arguments == ("--no-deps", "torch==2.13.0")


@pytest.mark.parametrize("answer", [CUDA, None])
def test_without_a_gpu_cuda_or_no_answer_leads_to_the_cpu_index(answer: dict[str, Any] | None) -> None:
    arguments = setup_venv.choose_torch("default", "Linux", False, answer).arguments
    assert arguments[-1] == "torch==2.13.0+cpu"
    assert "https://download.pytorch.org/whl/cpu" in arguments


def test_with_a_gpu_and_on_macos_the_plain_package_is_taken() -> None:
    assert setup_venv.choose_torch("default", "Linux", True, None).arguments == ("torch==2.13.0",)
    assert setup_venv.choose_torch("default", "Darwin", False, None).arguments == ("torch==2.13.0",)


def test_a_torch_of_ones_own_goes_to_pip_as_it_was_written() -> None:
    wish = "--index-url https://example.org/simple 'torch==2.12.1+rocm7'"
    expected = ("--index-url", "https://example.org/simple", "torch==2.12.1+rocm7")
    assert setup_venv.choose_torch(wish, "Linux", False, None).arguments == expected


def test_skip_installs_no_torch() -> None:
    assert setup_venv.choose_torch("skip", "Linux", False, CUDA).arguments == ()


def test_a_wish_for_torch_is_remembered_until_another_is_made() -> None:
    stamp = {"torch": "./torch.whl"}
    assert setup_venv.effective_wish(None, stamp) == "./torch.whl"
    assert setup_venv.effective_wish("", stamp) == "./torch.whl"
    assert setup_venv.effective_wish("default", stamp) == "default"
    assert setup_venv.effective_wish(None, {}) == "default"


def test_the_fingerprint_changes_with_every_content_and_every_fact() -> None:
    base = setup_venv.fingerprint([b"a", b"b"], ["x"])
    others = [([b"a", b"c"], ["x"]), ([b"a", b"b"], ["y"]), ([b"ab", b""], ["x"]), ([b"a"], ["bx"])]
    assert base == setup_venv.fingerprint([b"a", b"b"], ["x"])
    assert base not in [setup_venv.fingerprint(contents, facts) for contents, facts in others]


def test_everything_else_is_constrained_to_the_torch_that_is_there() -> None:
    lines = setup_venv.own_constraints("# why\nnumpy==2.4.6\ntorch==2.13.0\n", "2.12.1+rocm7").splitlines()
    assert lines == ["numpy==2.4.6", "torch==2.12.1+rocm7"]


@pytest.mark.parametrize(
    ("output", "meaning"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        ("Failed to resolve 'pypi.org' (NameResolutionError)\nERROR: No matching distribution", "could not be reached"),
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]'))", "PIP_CERT"),
    ],
)
def test_a_known_failure_of_pip_is_one_line_with_what_to_do(output: str, meaning: str) -> None:
    message = setup_venv.explain_failure("installing whet", output)
    assert message.startswith("installing whet failed: ")
    assert meaning in message
    assert "\n" not in message


def test_an_unknown_failure_of_pip_shows_its_last_lines() -> None:
    assert "  ERROR: odd" in setup_venv.explain_failure("installing whet", "Collecting\n\nERROR: odd\n")


def test_unrequested_cuda_packages_are_reported() -> None:
    names = ["torch", "nvidia-cudnn-cu13"]
    assert "nvidia-cudnn-cu13" in setup_venv.cuda_surprise(names, "default", has_gpu=False)
    assert setup_venv.cuda_surprise(names, "default", has_gpu=True) is None
    assert setup_venv.cuda_surprise(names, "./torch.whl", has_gpu=False) is None
    assert setup_venv.cuda_surprise(["torch"], "default", has_gpu=False) is None


def test_a_full_disk_is_reported_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 0.4 * setup_venv.GB

    monkeypatch.setattr(setup_venv.shutil, "disk_usage", lambda place: Usage)
    with pytest.raises(setup_venv.SetupError, match=r"0\.4 GB free and 2\.5 GB are needed"):
        setup_venv.check_space(installed=False, has_gpu=False)
    setup_venv.check_space(installed=True, has_gpu=False)


def test_missing_venv_module_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python3.12"
    broken.write_text("#!/bin/sh\necho 'Error: ensurepip is not available' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(setup_venv, "VENV", str(tmp_path / ".venv"))
    with pytest.raises(setup_venv.SetupError, match=r"apt install python3\.12-venv"):
        setup_venv.make_venv(str(broken), system_packages=False)


def script_in(directory: Path) -> Path:
    """A copy of the set-up script in a project of its own, which has nothing else yet."""
    for name in ("scripts/setup_venv.py", "pyproject.toml", "requirements/constraints.txt"):
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    return directory / "scripts" / "setup_venv.py"


def run_script(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(script.parent), **variables}
    return subprocess.run([sys.executable, str(script)], env=environment, text=True, capture_output=True, check=False)


def test_a_python_that_does_not_exist_is_one_line_and_exit_code_one(tmp_path: Path) -> None:
    done = run_script(script_in(tmp_path), PYTHON="/no/such/python")
    assert done.returncode == 1
    assert done.stderr == "whet setup: error: PYTHON=/no/such/python: there is no such program, or it does not start\n"
    assert not (tmp_path / ".venv").exists()


def test_nothing_is_started_when_nothing_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = script_in(tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho started >> '{tmp_path / 'started'}'\nexit 1\n")
    python.chmod(0o755)
    for name, value in {"ROOT": tmp_path, "CONSTRAINTS": tmp_path / "requirements" / "constraints.txt"}.items():
        monkeypatch.setattr(setup_venv, name, str(value))
    monkeypatch.setattr(setup_venv, "__file__", str(script))
    path = next(iter(setup_venv.find_pythons(sys.executable)))
    stamp = {"root": str(tmp_path), "python": path, "named": sys.executable, "torch": "default"}
    stamp["key"] = setup_venv.current_key("default", path)
    (tmp_path / ".venv" / "whet-setup.json").write_text(json.dumps(stamp))

    assert run_script(script, PYTHON=sys.executable).returncode == 0
    assert not (tmp_path / "started").exists()

    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'changed'\n")
    assert run_script(script, PYTHON=sys.executable).returncode == 1
    assert (tmp_path / "started").exists()
