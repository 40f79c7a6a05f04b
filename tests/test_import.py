"""`import whet` is light, and its names are all there."""

import json
import shutil
import subprocess
import sys

import pytest

import whet
from whet.inference.model_names import resolve_model

HEAVY = ("torch", "datasets", "openai", "transformers", "numpy", "pydantic", "rich", "math_verify")


def modules_after(code):
    script = f"{code}\nimport sys, json; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout))


GENERATE = """
import whet
rubric = whet.Rubric(funcs=[lambda completion: 1.0])
env = whet.SingleTurnEnv(dataset=[{"question": "q", "answer": "a"}], rubric=rubric)
env.generate_sync(env.get_dataset(), whet.ScriptedClient(["a"]), "m")
"""


@pytest.mark.parametrize(
    "code", ["import whet", "import whet; whet.SingleTurnEnv; whet.Rubric; whet.load_environment", GENERATE]
)
def test_environments_load_nothing_heavy(code):
    assert modules_after(code).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "module",
    ["rl.config", "rl.sft.config", "rl.doctor", "rl.report", "rl.stored.compare", "rl.stored.views", "viewer.app"],
)
def test_reading_runs_needs_no_extra(module):
    assert modules_after(f"import whet.{module}").isdisjoint({"numpy", "torch", "transformers", "tokenizers", "PIL"})


def test_the_embedded_engine_needs_no_model_of_transformers(tmp_path):
    """Which take seconds to import, and 80 MiB with torch's compiler; families that are not whet's own need them."""
    tiny = resolve_model("whet/tiny")
    for path in (*tiny.glob("*token*"), tiny / "chat_template.jinja"):
        shutil.copy(path, tmp_path)
    config = json.loads((tiny / "config.json").read_text()) | {"model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    read = f"from whet.inference.loading import read_model; read_model({str(tmp_path)!r})"
    modules = modules_after(f"{read}; import whet.inference.embedded")
    assert "transformers" in modules
    assert modules.isdisjoint({"transformers.modeling_utils", "torch._dynamo", "sympy", "accelerate"})


@pytest.mark.parts
def test_an_adapter_needs_no_bitsandbytes():
    pytest.importorskip("bitsandbytes", reason="the extra 'quantised' is not installed")
    assert "bitsandbytes" not in modules_after("import whet.rl.learner.lora")


def test_every_exported_name_can_be_imported():
    for name in whet.__all__:
        assert getattr(whet, name) is not None, name


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(AttributeError, match="SingleTurnEnv"):
        whet.SingelTurnEnv  # noqa: B018


def test_dir_lists_names_that_are_not_loaded_yet():
    assert "MathRubric" in dir(whet)
