"""What tests of every room share."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.util
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from whet.errors import ConfigError, SandboxUnavailableError
from whet.inference.devices import check_device
from whet.sandboxes.bubblewrap import host as bubblewrap_host
from whet.system.redaction import KNOWN

# As `whet` sets it before it loads torch, which test modules do here: threads that spin for each other on shared cores
# take several times as long (docs/design/log.md).
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

# A client reads the certificates that it trusts, which takes longer than most tests (23 ms): those of tests share them.
for _library in ("httpx", "httpx2"):
    if importlib.util.find_spec(_library) is not None:
        _transports = importlib.import_module(f"{_library}._transports.default")
        _transports.create_ssl_context = functools.cache(_transports.create_ssl_context)

# What a killed process has written stays; only a loss of power needs more, and no test has one (warm_server.py too).
os.fsync = lambda descriptor: None


def _beside(name: str) -> Any:
    """A module of this folder: tests are imported by path, so that it is not on the path for imports."""
    spec = importlib.util.spec_from_file_location(f"tests_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_pages, _players, _skips, _terminals, _warm = map(_beside, ("pages", "players", "skips", "terminals", "warm"))

LONGEST = (
    "tests/rl/sweep/test_sweeps.py",
    "tests/tasksets/agents/test_real_agents.py",
    "tests/service/test_up.py",
    "tests/authoring/test_templates_train.py",
    "tests/contract/test_asynchronous_training.py",
    "tests/authoring/review/test_check.py",
    "tests/contract/test_repeatable_training.py",
    "tests/docs/test_guides.py",
    "tests/gepa/test_kills.py",
    "tests/parity/test_definitions.py",
    "tests/rl/doctor/test_diseases.py",
    "tests/faults/test_sick_environments.py",
    "tests/gateway/test_hostile_traffic.py",
    "tests/rl/learner/test_memory.py",
    "tests/envs/test_mcp_env.py",
    "tests/faults/test_kills.py",
    "tests/envs/test_mcp_faults.py",
    "tests/system/test_signals.py",
    "tests/gepa/test_run.py",
    "tests/faults/test_hung_processes.py",
    "tests/gepa/test_search_finds_the_planted_prompt.py",
    "tests/contract/test_repeatable_sft.py",
    "tests/authoring/test_scaffold.py",
    "tests/rl/test_run_failures.py",
    "tests/faults/test_recovery.py",
    "environments/code_tests/tests/test_code_tests.py",
    "tests/envs/test_python_env.py",
    "tests/evals/sessions/test_workers.py",
    "environments/mcp_files/tests/test_mcp_files.py",
    "tests/contract/token_truth/test_shipped_templates.py",
)
"""Files that take many seconds, the longest first: they begin first, so that no worker has one left in the end."""

TOGETHER = {
    "vllm": ("tests/inference/vllm/", "tests/rl/test_vllm_training.py"),  # they share one server
    "ray": ("tests/rl/cluster/",),  # they look for the processes of any cluster of this machine
    "ranks": ("tests/rl/learner/ranks/",),  # processes of several ranks are forked from one that has imported torch
    "doctor": ("tests/rl/doctor/test_changes.py", "tests/rl/doctor/test_diseases.py"),  # they examine the same runs
}
"""Files, and folders of files, that one worker runs. They begin first. Every other file is on its own."""


PARTS_SECONDS = 1200
"""As `timeout` in pyproject.toml, for tests with heavy parts: on a busy machine they train and kill for minutes."""

# No test fails because a machine is busy, and continuous integration tries the same examples each time.
hypothesis.settings.register_profile("whet", max_examples=40, deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("whet")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr != "gpu":  # tests of bits are of a CPU's: what is `auto` in them must not find a GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist would begin with files of many tests
        config.option.loadscopereorder = False
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", 0):
        gc.disable()  # importing all tests makes a million objects that stay: until then no garbage is among them
    if not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the process that started them
        config.pluginmanager.register(_skips.Skips())
        if os.environ.get("CI"):
            config.pluginmanager.register(Failures(config))


class Failures:
    """Names each failure when it comes: a run that a time limit ends prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
            terminal.write_line(f"\nfailed: {report.nodeid} ({report.when})")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile` a worker takes a file at a time, or the files of one group."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class GroupScheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return GroupScheduling(config, log)


def group_of(nodeid: str) -> str:
    """The group in `TOGETHER` of a test, or its file."""
    return next((name for name, starts in TOGETHER.items() if nodeid.startswith(starts)), nodeid.split("::", 1)[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = Path(__file__).parents[1]
    places = {root / name: place for place, name in enumerate(LONGEST)}
    missing = [str(path) for path in places if not path.is_file()]
    if missing:
        raise pytest.UsageError(f"LONGEST in {__file__} names files that are not there: {', '.join(missing)}")
    items.sort(key=lambda item: (group_of(item.nodeid) not in TOGETHER, places.get(item.path, len(places))))
    for item in items:
        if item.get_closest_marker("parts") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(PARTS_SECONDS))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is not None:
        try:
            check_device("cuda", "device")
        except ConfigError as error:
            pytest.skip(str(error))


def pytest_runtest_teardown() -> None:
    KNOWN.forget()  # secrets of one test are words of another


def pytest_collection_finish() -> None:
    """What has been imported stays: the garbage collector need not look at it again in every test."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """What a command with `-v` sets up is taken back: the next test of this process may read the log."""
    loggers = [logging.getLogger(name) for name in ("whet", "verifiers")]
    before = [(logger, list(logger.handlers), logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers[:], logger.propagate = handlers, propagate
        if logger.level != level:
            logger.setLevel(level)


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.getbasetemp()
    server = _warm.Warm(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)
    yield server
    server.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """A server of PostgreSQL; see `postgresql.py`."""
    module = _beside("postgresql")
    folder = module.programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed here")
    server = module.Postgresql(folder)
    yield server
    server.close()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.parts)])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """The database of a test: SQLite in its folder, and with the marker `parts` PostgreSQL."""
    return request.getfixturevalue("postgresql").database() if request.param == "postgresql" else None


@pytest.fixture
def terminals(warm_server: Any) -> Iterator[Any]:
    """Real terminals: `terminals.open(command, columns=80, rows=24)`; see `terminals.py`."""
    opened = _terminals.Terminals(warm_server)
    yield opened
    opened.close()
    warm_server.clean()


@pytest.fixture
def warm(warm_server: Any) -> Iterator[Any]:
    """`whet` in processes that start at once: `warm.start("train", "run", config)`; see `warm.py`."""
    yield warm_server
    warm_server.clean()


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """Skips a test on a machine whose kernel or packages do not allow bubblewrap."""
    try:
        bubblewrap_host.host()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def agent_installed() -> Callable[[str], None]:
    """Installs an agent of `whet agent list`; a test is skipped where its registry, npm or Node 20 is out of reach."""

    def install(name: str) -> None:
        from whet.tasksets.agents.installed import agent_folder, agent_status
        from whet.tasksets.agents.presets import AGENTS

        preset = AGENTS[name]
        try:
            asyncio.run(agent_folder(preset, preset.version))
            problem = agent_status(preset).problem
        except ConfigError as error:
            problem = str(error)
        if not problem and "node" in preset.programs:
            version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
            problem = "" if int(version.lstrip("v").partition(".")[0]) >= 20 else f"node is {version}"
        if problem:
            pytest.skip(f"the agent {name} cannot be run here: {problem}")

    return install


@pytest.fixture(scope="session")
def fuzzing() -> Any:
    """Draws requests for the routes of an application; see `fuzzing.py`."""
    return _beside("fuzzing")


@pytest.fixture(scope="session")
def payloads() -> Any:
    """Texts that run where a page takes them for markup; see `payloads.py`."""
    return _beside("payloads")


@pytest.fixture
def read_page() -> Callable[[Path], Any]:
    """An HTML file as a browser would read it: tags, texts, and `check()`; see `pages.py`."""
    return _pages.Page


@pytest.fixture(scope="session")
def vllm_servers() -> Any:
    """How vLLM servers of the tests are started; see `vllm_servers.py`."""
    pytest.importorskip("torch")
    return _beside("vllm_servers")


@pytest.fixture(scope="session")
def vllm_server(vllm_servers: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A vLLM server of whet/tiny that answers: one for all tests, which leave its weights as they found them."""
    server = vllm_servers.server(tmp_path_factory.mktemp("vllm"))
    server.start()
    try:
        asyncio.run(server.ready())
        yield server
    finally:
        server.close()


@pytest.fixture
def stand_in_device() -> Any:
    """Takes the place of a GPU inside a `with` block; see `stand_in.py`."""
    return _beside("stand_in").StandInDevice


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Each that a test computes on; `-m gpu` takes the second."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Other machines: `machine(count=2)` seems to have two GPUs; see `stand_in.py`."""
    pytest.importorskip("torch")
    return _beside("stand_in").Machine(monkeypatch, tmp_path_factory.mktemp("torch"))


@pytest.fixture(scope="session")
def players() -> Any:
    """Programs that draw what a test tells them; see `players.py`."""
    return _players


@pytest.fixture
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1 that is not in use and that the kernel gives to no one: a server that asks for it gets it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        if sys.platform != "linux":  # elsewhere a socket that is only bound refuses a server
            held.close()
        yield port


@pytest.fixture
def hostile() -> tuple[str, str]:
    """What a model might say to break out of a page, and how the page shows it."""
    return _pages.HOSTILE, _pages.HARMLESS
