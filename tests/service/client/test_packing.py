"""What is submitted of a config: files by relative names, modules, models, secrets, needs. No service is asked."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from whet.envs.identity.record import identify
from whet.errors import ConfigError, ModelLoadError, WhetError
from whet.rl.config import load_run_config
from whet.service.answers import InstalledAnswer, ServiceAnswer
from whet.service.client.environments import OnHub, OnService, ToPush, origin_of
from whet.service.client.evaluating import pack_evaluations, pack_search
from whet.service.client.files import FILE_BYTES, SubmissionFiles, with_files
from whet.service.client.packed import Packed, changed_needs, secrets_of
from whet.service.client.training import load_config, pack

SERVICE = ServiceAnswer(version="0", models=["whet/tiny"], largest={"cores": 2, "memory": 8 << 30, "devices": 0})
URL = "https://service.example"
CANARY = "canary-5f2b9c1e7a"
RUN = """
model = "whet/tiny"
max_steps = 2
batch_size = 8
rollouts_per_example = 4

[sampling]
max_tokens = 16

[[env]]
id = "reverse-text"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def packed(text: str, *overrides: str, secrets: dict[str, str] | None = None) -> Packed:
    Path("my.toml").write_text(text)
    return pack(load_config(Path("my.toml"), overrides), SERVICE, secrets or {}, URL)


def read_back(found: Packed, folder: Path, ids: dict[str, str] | None = None) -> Any:
    """The submission as the run has it: its config loaded in a folder with its files."""
    found.settle({env_id: env_id for env_id in found.environment_ids} | (ids or {}))
    folder.mkdir()
    for name, file in found.files.by_name.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(file.content())
    (folder / "config.toml").write_text(found.config({}))
    return folder / "config.toml"


def test_submitted_config_is_the_local_one_with_its_overrides(folder: Path) -> None:
    found = packed(RUN, "--max_steps", "3", "--sampling.temperature", "0.5")
    local = load_run_config(Path("my.toml"), ["--max_steps", "3", "--sampling.temperature", "0.5"])
    assert load_run_config(read_back(found, folder / "there")) == local
    assert found.kind == "training"
    assert not found.files.by_name


@pytest.mark.parametrize("config", ["quickstart", "multi"])
def test_configs_of_the_project_are_submitted_as_they_are(config: str, folder: Path) -> None:
    file = Path(__file__).parents[3] / "configs" / "rl" / f"{config}.toml"
    found = pack(load_config(file, []), SERVICE, {}, URL)
    assert load_run_config(read_back(found, folder / "there"), ["--name", config]) == load_run_config(file)


def test_gpus_that_a_config_demands_are_kept_for_it(folder: Path) -> None:
    found = packed("num_gpus = 8\ntensor_parallel_size = 4\n" + RUN)
    assert found.needs["devices"] == 8
    assert found.needs["device_memory"] > 0
    read = read_back(found, folder / "there")
    assert load_run_config(read).gpus.infer == 4


def test_servers_of_this_machine_alone_are_refused_by_a_service_elsewhere(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"inference.base_url http://127.0.0.1:8000 is this machine alone"):
        packed(RUN, "--inference.base_url", "http://127.0.0.1:8000")
    found = packed(RUN, "--inference.base_url", "http://vllm.example:8000")
    assert load_run_config(read_back(found, folder / "there")).engine == "vllm"


def test_files_of_arguments_and_a_small_model_are_sent_under_relative_names(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "tasks.jsonl").write_text('{"a": 1}\n')
    (folder / "tasks.jsonl").write_text('{"a": 2}\n')
    (folder / "small").mkdir()
    (folder / "small" / "config.json").write_text("{}")
    files = SubmissionFiles()
    value = {"data": str(folder / "elsewhere" / "tasks.jsonl"), "more": ["tasks.jsonl", "other.jsonl", "/workspace", 3]}
    assert with_files(value, "args", files) == {
        "data": "files/tasks.jsonl",
        "more": ["files/tasks-2.jsonl", "other.jsonl", "/workspace", 3],
    }
    assert files.add(folder / "small", "model", "models") == "models/small"
    contents = {name: file.content() for name, file in files.by_name.items()}
    assert contents["files/tasks-2.jsonl"] == b'{"a": 2}\n'
    assert contents["models/small/config.json"] == b"{}"
    with pytest.raises(ConfigError, match=r"args: \./small is a folder of this machine"):
        with_files("./small", "args", files)


def test_file_that_is_too_large_is_refused_with_what_to_do(folder: Path) -> None:
    with (folder / "large.jsonl").open("wb") as file:
        file.truncate(FILE_BYTES + 1)
    with pytest.raises(ConfigError, match=r"data: .*large.jsonl has 50 MiB; .* at most 50\. Put the data into"):
        with_files("large.jsonl", "data", SubmissionFiles())


def test_files_with_keys_are_refused_by_name_and_warned_of_by_content(folder: Path) -> None:
    (folder / "id_rsa").write_text("key")
    (folder / "rows.jsonl").write_text('{"text": "sk-proj-1a2B3c4D5e6F7g8H9i0J1k2L3m4N5o6P7q8R"}\n')
    files = SubmissionFiles()
    with pytest.raises(ConfigError, match="args: files/id_rsa is a file that is made to hold keys"):
        with_files(str(folder / "id_rsa"), "args", files)
    with_files("rows.jsonl", "args", files)
    [warning] = files.warnings()
    assert warning.startswith("files/rows.jsonl:1: ")
    assert "which all who see the run can read" in warning


def test_data_of_fine_tuning_is_sent(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    found = packed('batch_size = 2\n[data]\npath = "rows.jsonl"\n')
    assert found.kind == "sft"
    assert found.tables["data"]["path"] == "files/rows.jsonl"
    assert found.needs["memory"] > 1 << 30


def test_rollouts_of_a_run_are_sent_without_its_checkpoints(folder: Path) -> None:
    run = folder / "runs" / "first"
    for name in ("rollouts/step_000001.jsonl", "config.toml", "checkpoints/step_1/weights", "model/config.json"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("")
    files = SubmissionFiles()
    assert files.add(run, "[data] path") == "files/first"
    assert sorted(files.by_name) == ["files/first/config.toml", "files/first/rollouts/step_000001.jsonl"]


def test_loss_and_curriculum_are_sent_with_what_they_import(folder: Path) -> None:
    (folder / "sent_helper.py").write_text("WEIGHT = 2.0\n")
    (folder / "sent_loss.py").write_text(
        "from sent_helper import WEIGHT\nimport numpy\n"
        "def mine(groups):\n    return [[WEIGHT * r for r in g.rewards_G] for g in groups]\n"
    )
    (folder / "sent_orders").mkdir()
    (folder / "sent_orders" / "__init__.py").write_text("from whet.rl.data.curriculum import MixedCurriculum as Mine\n")
    found = packed(RUN + '[algorithm]\nadvantage = "sent_loss:mine"\n[buffer]\ncurriculum = "sent_orders:Mine"\n')
    assert sorted(found.files.by_name) == [
        "modules/sent_helper.py",
        "modules/sent_loss.py",
        "modules/sent_orders/__init__.py",
    ]
    with pytest.raises(WhetError, match="is in a package that is installed here"):
        packed(RUN + '[buffer]\ncurriculum = "numpy:array"\n')


def test_environment_that_is_a_folder_is_pushed_and_keeps_its_name_in_metrics(folder: Path) -> None:
    made = folder / "environments" / "sum_game"
    made.mkdir(parents=True)
    (made / "pyproject.toml").write_text('[project]\nname = "sum-game"\nversion = "0.2.0"\n')
    source = Path(__file__).parents[3] / "environments" / "reverse_text" / "reverse_text.py"
    (made / "sum_game.py").write_bytes(source.read_bytes())
    found = packed(RUN.replace("reverse-text", "environments/sum_game"))
    [env_id] = found.environment_ids
    origin = origin_of(env_id, {})
    assert isinstance(origin, ToPush)
    assert (origin.source.name, origin.source.version, origin.source.folder) == ("sum-game", "0.2.0", made)
    assert isinstance(origin_of("sum-game", {}), ToPush)  # by the folder's name
    assert found.settle({env_id: "ann/sum-game@0.2.0"}) == ["ann/sum-game@0.2.0"]
    [section] = tomllib.loads(found.config({}))["env"]
    assert section == {"id": "ann/sum-game@0.2.0", "name": "sum_game"}
    for refused, why in (
        ("environments/sum_game/sum_game.py", "is one file; the service installs packages"),
        ("https://example.com/a-1.0-py3-none-any.whl#sha256=" + "0" * 64, "installs from its hub, not from a URL"),
        ("not-there", "is not installed"),
    ):
        with pytest.raises(WhetError, match=why):
            origin_of(refused, {})


def test_environment_stays_where_the_service_has_the_same_files() -> None:
    here = identify("reverse-text")
    same = InstalledAnswer(id="reverse-text", version="0.1.0", content=here.content)
    other = InstalledAnswer(id="reverse-text", version="0.1.0", content="0" * 16)
    assert origin_of("reverse-text", {"reverse-text": same}) == OnService("reverse-text")
    assert isinstance(origin_of("reverse-text", {"reverse-text": other}), ToPush)
    assert origin_of("only-there", {"only-there": other}) == OnService("only-there")
    assert isinstance(origin_of("ann/reverse-text@0.1.0", {"reverse-text": same}), OnHub)


def test_environments_named_in_arguments_are_found(folder: Path) -> None:
    text = RUN.replace('id = "reverse-text"', 'id = "multi"\n[[env.args.envs]]\nid = "arithmetic"\nweight = 2')
    found = packed(text)
    assert found.environment_ids == ["multi", "arithmetic"]
    found.settle({"multi": "ann/multi@1", "arithmetic": "ann/arithmetic@1"})
    [section] = tomllib.loads(found.config({}))["env"]
    assert section["args"]["envs"] == [{"id": "ann/arithmetic@1", "weight": 2}]


def test_models_of_this_machine(folder: Path) -> None:
    from whet.models import tiny

    name = str(tiny.path())
    found = packed(RUN.replace("whet/tiny", name))
    assert found.tables["model"] == "models/tiny"
    assert load_run_config(read_back(found, folder / "there")).model == "models/tiny"
    taught = packed(RUN + f'algorithm = "opd"\n[algorithm]\nreference = "{name}"\n')
    assert load_run_config(read_back(taught, folder / "taught")).reference == "models/tiny"
    (folder / "checkpoint").mkdir()
    with pytest.raises((ModelLoadError, ConfigError)):
        packed(RUN.replace("whet/tiny", "./checkpoint"))
    found = packed(RUN.replace("whet/tiny", "some/model-on-a-hub"))
    assert any("not on the service yet" in note for note in found.notes)
    assert any(note.startswith("memory: some/model-on-a-hub") for note in found.notes)


def test_values_of_env_files_are_secrets_and_nowhere_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "first.env").write_text(f"MY_KEY={CANARY}\nBOTH=first\nTO_FILL_IN=\n")
    (folder / "second.env").write_text("BOTH=second\n")
    monkeypatch.setenv("FROM_HERE", "here")
    found = secrets_of([Path("first.env"), Path("second.env")], ["EXTRA=1=2", "FROM_HERE"])
    assert found == {"MY_KEY": CANARY, "BOTH": "first", "EXTRA": "1=2", "FROM_HERE": "here"}
    with pytest.raises(ConfigError, match="NOT_SET: the variable is not set here"):
        secrets_of([], ["NOT_SET"])
    sent = packed('env_file = ["first.env"]\nruns_directory = "elsewhere"\n' + RUN, secrets=found)
    text = sent.config(found)
    assert CANARY not in text
    assert "env_file" not in text
    assert "runs_directory" not in text
    assert "MY_KEY" not in os.environ


def test_config_or_file_with_a_secret_in_it_is_refused(folder: Path) -> None:
    secrets = {"MY_KEY": CANARY}
    inside = packed(RUN + f'args = {{ system_prompt = "say {CANARY}" }}\n', secrets=secrets)
    with pytest.raises(ConfigError, match="the value of MY_KEY is also in the config") as told:
        inside.config(secrets)
    assert CANARY not in str(told.value)
    found = packed(RUN, secrets=secrets)
    (folder / "rows.jsonl").write_text(CANARY)
    found.files.add(folder / "rows.jsonl", "args.data")
    with pytest.raises(ConfigError, match=r"the value of MY_KEY is also in files/rows\.jsonl"):
        found.config(secrets)
    written = packed(RUN + 'args = { system_prompt = "see https://user:pass@host/x" }\n')
    with pytest.raises(ConfigError, match=r"env\.0\.args\.system_prompt has a secret in it"):
        written.config({})


def test_needs_come_from_the_estimate_and_the_largest_runner() -> None:
    found = packed(RUN + "[deployment]\nthreads = 1\n")
    assert (found.needs["cores"], found.needs["devices"]) == (1, 0)
    larger = packed(RUN, "--batch_size", "512", "--max_concurrent", "512", "--sampling.max_tokens", "512")
    assert larger.needs["memory"] > found.needs["memory"] > 1 << 30
    assert larger.needs["cores"] == 2  # the largest runner has no more
    on_gpu = packed(RUN, "--learner.device", "cuda:1", "--inference.device", "cuda:0")
    assert on_gpu.needs["devices"] == 2
    assert on_gpu.needs["device_memory"] > 0
    chosen = changed_needs(on_gpu.needs, {"cores": 3, "devices": 0})
    assert (chosen["cores"], chosen["device_memory"]) == (3, 0)
    assert chosen["memory"] == on_gpu.needs["memory"] + on_gpu.needs["device_memory"]


def test_what_a_run_refuses_is_refused_before_it_is_sent() -> None:
    with pytest.raises(WhetError, match="has no argument 'no_such'"):
        packed(RUN + "args = { no_such = 1 }\n")
    with pytest.raises(WhetError, match="not divisible by rollouts_per_example"):
        packed(RUN, "--batch_size", "9")
    with pytest.raises(WhetError, match=r"buffer\.curriculum: 'nowhere:none' cannot be imported"):
        packed(RUN + '[buffer]\ncurriculum = "nowhere:none"\n')


# Evaluations and searches

ENDPOINTS = """
[[endpoint]]
endpoint_id = "mini"
model = "gpt-mini"
url = "https://api.example.com/v1"
key = "MINI_KEY"

[[endpoint]]
endpoint_id = "other"
model = "gpt-other"
url = "https://other.example.com/v1"
"""
URL = "https://service.example.com"


def test_evaluation_has_the_defaults_of_its_environment_and_only_its_endpoint(folder: Path) -> None:
    from whet.evals.planning.plan import plan_evals

    (folder / "endpoints.toml").write_text(ENDPOINTS)
    given = {"model": "mini", "endpoints": "endpoints.toml", "temperature": 0.5, "env_args": {"max_length": 9}}
    found = pack_evaluations(["reverse-text"], given, None, SERVICE, URL, {})
    assert (found.kind, found.name) == ("evaluation", "reverse-text-mini")
    there = read_back(found, folder / "there")
    assert "other" not in (there.parent / "endpoints.toml").read_text()
    [local] = plan_evals(["reverse-text"], given)
    [remote] = plan_evals([str(there)], {})
    same = {"endpoints": local.endpoints}
    assert remote.model_copy(update=same) == local
    assert local.num_examples == 32  # of the environment's pyproject.toml, which an installed package has not


@pytest.mark.parametrize(
    ("free", "given", "cores"), [(1.0, {}, 1), (0.0, {}, 1), (2.0, {}, 2), (1.0, {"threads": 2}, 2)]
)
def test_evaluation_takes_the_cores_that_are_free(free: float, given: dict[str, Any], cores: int) -> None:
    service = SERVICE.model_copy(update={"free_cores": free})
    found = pack_evaluations(["reverse-text"], {"model": "whet/tiny", **given}, None, service, URL, {})
    assert found.needs["cores"] == cores
    assert any("as many as are free there now" in note for note in found.notes) == (cores < 2)


def test_evaluation_of_a_model_here_and_an_environment_that_is_only_on_the_hub(folder: Path) -> None:
    found = pack_evaluations(["ann/word-game@0.1.0"], {}, "first", SERVICE, URL, {})
    assert found.environment_ids == ["ann/word-game@0.1.0"]
    assert found.needs["memory"] > 1 << 30
    with pytest.raises(ConfigError, match="which the service cannot reach"):
        pack_evaluations(
            ["reverse-text"], {"model": "x", "base_url": "http://localhost:8000/v1"}, None, SERVICE, URL, {}
        )
    pack_evaluations(
        ["reverse-text"],
        {"model": "x", "base_url": "http://localhost:8000/v1"},
        None,
        SERVICE,
        "http://127.0.0.1:1",
        {},
    )


def test_search_is_read_back_as_it_was(folder: Path) -> None:
    from whet.gepa.options import load_config as load_search

    (folder / "endpoints.toml").write_text(ENDPOINTS)
    (folder / "search.toml").write_text(
        'env_id = "reverse-text"\nmodel = "mini"\nendpoints = "endpoints.toml"\nmax_calls = 200\n'
        'seed_prompt = "Reverse."\n'
        "env_args = { max_length = 9 }\n[sampling]\ntemperature = 0.7\n[gepa]\nmax_unusable = 3\n"
    )
    local = load_search("search.toml", {})
    found = pack_search(local, SERVICE, URL, {})
    assert found.needs["memory"] < 1 << 30  # no model runs there
    remote = load_search(str(read_back(found, folder / "there")), {})
    assert remote.model_copy(update={"endpoints": local.endpoints}) == local


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"env_args": {"nonsense": 3}}, "has no argument 'nonsense'"),
        ({"extra_env_kwargs": {"nonsense": 3}}, "has no setting 'nonsense'"),
        ({"model": "no-such-model"}, "there is no model directory 'no-such-model'"),
    ],
)
def test_evaluation_that_would_be_refused_here_is_refused(folder: Path, given: dict[str, Any], words: str) -> None:
    with pytest.raises(WhetError, match=words):
        pack_evaluations(["reverse-text"], given, None, SERVICE, URL, {})


def test_evaluation_may_name_a_device_and_a_secret_that_only_the_service_has(folder: Path) -> None:
    (folder / "keyed.py").write_text(
        "import os\nimport whet\n\ndef load_environment():\n    os.environ['SENT_KEY']\n"
        "    return whet.SingleTurnEnv(dataset=[{'question': 'q', 'answer': 'a'}])\n"
    )
    given = {"device": "cuda:7", "offline": True}
    found = pack_evaluations(["keyed.py"], given, None, SERVICE, URL, {"SENT_KEY": "x"})
    assert (found.needs["devices"], found.tables["eval"][0]["device"]) == (8, "cuda:7")
    assert "SENT_KEY" not in os.environ


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("max_calls = 40", "is too few for one round"),
        ("env_args = {nonsense = 1}", "has no argument 'nonsense'"),
        ('model = "no-such-model"', "there is no model directory"),
        ("max_cost = 2.0", "needs the prices of both models"),
    ],
)
def test_search_that_would_be_refused_here_is_refused_and_leaves_nothing(folder: Path, line: str, words: str) -> None:
    from whet.gepa.options import load_config as load_search

    (folder / "search.toml").write_text(f'env_id = "reverse-text"\n{line}\n')
    with pytest.raises(WhetError, match=words):
        pack_search(load_search("search.toml", {}), SERVICE, URL, {})
    assert not list(folder.glob("runs*"))


@pytest.fixture(autouse=True)
def forget_modules() -> Any:
    yield
    for name in [name for name in sys.modules if name.startswith(("sent_", "sum_game"))]:
        del sys.modules[name]
