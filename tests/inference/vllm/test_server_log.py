"""Which line of a server's output names the cause. The outputs are those of vLLM 0.32, shortened."""

from __future__ import annotations

import pytest

from whet.inference.vllm.server import LONGEST, root_cause

WORKER = "(Worker pid=9686) ERROR 11-25 16:07:09 [multiproc_executor.py:1063]"
CORE = "(EngineCore pid=9672) ERROR 11-25 16:07:09 [core.py:1510]"
MEMORY = f"""(APIServer pid=9600) INFO 11-25 16:07:01 [model.py:733] Resolved architecture: Qwen3ForCausalLM
{WORKER} Traceback (most recent call last):
{WORKER}   File "cpu_worker.py", line 250, in determine_available_memory
{WORKER} ValueError: Available memory on node 0 (14.09/15.46 GiB) is less than requested memory for kv (400.0 GiB).
{CORE} EngineCore failed to start.
{CORE} Traceback (most recent call last):
{CORE}     raise RuntimeError(
{CORE} RuntimeError: Worker failed with error 'Available memory', please check the stack trace above for the root cause
Process EngineCore:
Traceback (most recent call last):
RuntimeError: Worker failed with error 'Available memory', please check the stack trace above for the root cause
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects to clean up
"""
EXTENSION = f"""{WORKER} ModuleNotFoundError: No module named 'x'
Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{'EngineCore': 1}}
"""
ARGUMENT = """usage: api_server.py [-h] [--headless] [--api-server-count API_SERVER_COUNT]
                     [model_tag]
api_server.py: error: argument --max-model-len: invalid human_readable_int_or_auto value: 'abc'
"""
PYDANTIC = """pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, max_model_len (1000000) is greater than the derived one (1024).
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
NO_VLLM = (
    "/opt/bin/python: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
    "(ModuleNotFoundError: No module named 'vllm')\n"
)
KILLED = f"""{CORE} Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor.
{CORE} EngineCore encountered a fatal error.
{CORE} RuntimeError: Executor failed.
{CORE} vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above).
"""


@pytest.mark.parametrize(
    ("output", "beginning"),
    [
        (MEMORY, "ValueError: Available memory on node 0 (14.09/15.46 GiB) is less than"),
        (EXTENSION, "ModuleNotFoundError: No module named 'x'"),
        (ARGUMENT, "argument --max-model-len: invalid human_readable_int_or_auto value: 'abc'"),
        (PYDANTIC, "Value error, max_model_len (1000000) is greater"),
        (NO_VLLM, "Error while finding module specification for 'vllm.entrypoints.openai.api_server'"),
    ],
)
def test_the_cause_is_the_line_that_others_refer_to(output, beginning) -> None:
    cause = root_cause(output)
    assert cause is not None
    assert cause.startswith(beginning)
    assert "\n" not in cause


@pytest.mark.parametrize("output", ["", "Application startup complete.\n", KILLED])
def test_without_a_cause_there_is_none(output) -> None:
    assert root_cause(output) is None


def test_a_long_cause_is_cut() -> None:
    cause = root_cause(f"ValueError: {'x' * 10_000}")
    assert cause is not None
    assert len(cause) == LONGEST + 1
