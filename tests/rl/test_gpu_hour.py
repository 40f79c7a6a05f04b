"""`scripts/gpu_hour.sh`: every part in its tiny form, and what becomes of one that fails, hangs or lacks something."""

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hour():
    spec = importlib.util.spec_from_file_location("gpu_hour", ROOT / "benchmarks" / "gpu_hour.py")
    module = sys.modules["gpu_hour"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_hour"]


def part(hour, name, code, limit_s=60.0, **changes):
    return hour.Part(name, [sys.executable, "-c", code], limit_s, hour.last_json, **changes)


def test_a_part_that_fails_or_hangs_is_named_and_the_next_one_begins(hour, tmp_path, monkeypatch, capsys):
    child = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)'])"
    chosen = [
        part(hour, "fails", "print('half'); raise SystemExit('no memory')"),
        part(hour, "hangs", f"{child}; print('begun', flush=True); import time; time.sleep(99)", 1.0),
        part(hour, "lacks", "", lacking="there is no vLLM"),
        part(hour, "works", "print('noise'); print('{\"tokens_per_s\": 12.5}'); print('more noise')"),
    ]
    monkeypatch.setattr(hour, "parts", lambda options, out: iter(chosen))
    started = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        hour.main(["--out", str(tmp_path)])
    assert ended.value.code == 1
    assert time.monotonic() - started < 30
    report = {one["name"]: one for one in json.loads((tmp_path / "report.json").read_text())}
    assert [one["status"] for one in report.values()] == ["failed", "too long", "skipped", "ok"]
    assert "no memory" in report["fails"]["says"]
    assert report["hangs"]["says"] == "ended after 1 s\nbegun"
    assert report["lacks"]["says"] == "there is no vLLM"
    assert report["works"]["figures"] == {"tokens_per_s": 12.5}
    text = (tmp_path / "report.md").read_text()
    assert "| hangs | too long | 1 |" in text
    assert "* tokens_per_s: 12.5" in text
    assert "works: ok" in capsys.readouterr().out


def test_parts_for_which_no_time_is_left_are_skipped_and_an_unknown_one_is_refused(hour, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hour, "parts", lambda options, out: iter([part(hour, "works", "")]))
    with pytest.raises(SystemExit) as ended:
        hour.main(["--out", str(tmp_path), "--minutes", "0.01"])
    assert ended.value.code == 0
    assert json.loads((tmp_path / "report.json").read_text())[0]["says"] == "no time is left"
    with pytest.raises(SystemExit):
        hour.main(["--out", str(tmp_path), "--only", "nothing"])
    assert "no part is called nothing" in capsys.readouterr().err


def test_without_smoke_every_part_that_computes_does_so_on_the_gpu(hour, tmp_path):
    options = argparse.Namespace(smoke=False, vllm_python=tmp_path / "none", smollm2=tmp_path / "none.gguf")
    made = {one.name: one for one in hour.parts(options, tmp_path)}
    assert sum(one.limit_s for one in made.values()) <= 1.6 * 600  # limits, not what parts are expected to take
    assert all("cuda" in made[name].command for name in ("learner", "experts", "engine", "vllm", "colocate", "smollm2"))
    assert "gpu" in made["tests"].command
    assert f"{tmp_path / 'none.gguf'} is not there" in made["smollm2"].lacking
    assert "does not exist" in made["vllm"].lacking


@pytest.mark.long
@pytest.mark.parts
@pytest.mark.timeout(900)
def test_every_part_runs_in_its_tiny_form_on_a_cpu(tmp_path):
    command = [ROOT / "scripts" / "gpu_hour.sh", "--smoke", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout
    report = {one["name"]: one for one in json.loads((tmp_path / "report.json").read_text())}
    assert report.pop("vllm")["status"] in ("ok", "skipped")
    assert {one["status"] for one in report.values()} == {"ok"}
    assert report["learner"]["figures"]["tokens_per_s"] > 0
    assert report["experts"]["figures"]["gradients_apart"] < 1e-5
    assert len(report["colocate"]["figures"]["reward/mean"]) == 2
    assert report["colocate"]["figures"].keys() >= {"time/sleep", "time/wake"}
    assert len(report["smollm2"]["figures"]["reward/mean"]) == 2
