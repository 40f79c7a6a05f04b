"""`RunConfig`: strict, complete, and the same after a round trip through TOML."""

from pathlib import Path

import pytest

from whet.config import all_keys, section_of
from whet.errors import ConfigError, RunError
from whet.rl.config import RunConfig, load_run_config
from whet.rl.storage.run_directory import RunDirectory
from whet.rl.stored.stored_run import config_of_run

MINIMAL = 'name = "r"\nbatch_size = 32\n[[env]]\nid = "reverse-text"\n'


@pytest.fixture
def load(tmp_path: Path):
    def read(text: str = MINIMAL, *overrides: str) -> RunConfig:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return load_run_config(path, [*overrides, "--runs_directory", str(tmp_path / "runs")])

    return read


def refused(load, *args: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*args)
    return str(caught.value)


def test_the_resolved_config_reads_back_as_itself(load, tmp_path: Path) -> None:
    config = load(MINIMAL, "--lora.rank", "4", "--env.0.args.length", "9", "--sampling.stop", '["x"]')
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert load_run_config(tmp_path / "again.toml") == config


def test_a_run_is_saved_without_secrets_and_resumed_with_its_own_config(load) -> None:
    args = ["--env.0.args", '{ judge_url = "http://me:hunter2@h/v1?key=hunter3", judge_api_key = "hunter4" }']
    config = load(MINIMAL, *args).settled()
    run = RunDirectory(config.directory)
    run.open(config, resume=False)
    run.close()
    assert not [file for file in run.path.iterdir() if "hunter" in file.read_text()]
    with pytest.raises(RunError, match=r"env\.0\.args\.judge_url was saved without its secret"):
        config_of_run(run.path)
    run.check(config, resume=True)
    with pytest.raises(RunError, match="started with another config"):
        run.check(load(MINIMAL, *args, "--seed", "7"), resume=True)


@pytest.mark.parametrize(
    ("level", "limit", "said"), [(1, 1, "1 step of"), (4, 5, "5 steps of"), (1, 3, None), (1, 8, None), (0, 8, None)]
)
def test_too_little_time_for_long_rollouts_is_said_with_what_leaves_them_some(load, level, limit, said) -> None:
    flags = ["--max_async_level", str(level), *(["--max_off_policy_steps", str(limit)] if level else [])]
    cautions = load(MINIMAL, *flags).cautions
    if said is None:
        assert cautions == []
        return
    (line,) = cautions
    assert f"longer than {said} the learner is never trained" in line
    assert load(MINIMAL, *flags, "--max_off_policy_steps", line.split()[-4]).cautions == []


def test_a_batch_that_is_not_whole_groups_names_the_sizes_that_are(load) -> None:
    assert "use batch_size = 96 or 104" in refused(load, MINIMAL, "--batch_size", "100")


def test_a_misspelt_key_suggests_the_nearest(load) -> None:
    assert "Did you mean 'learning_rate'?" in refused(load, MINIMAL, "--learning_rat", "1")


def test_the_extra_body_of_other_trainers_is_read_as_keys_of_whet(load) -> None:
    text = (
        "[sampling]\n"
        "extra_body = { chat_template_kwargs = { enable_thinking = false }, top_k = 20, min_p = 0, "
        "return_token_ids = true, repetition_penalty = 1.0 }\n"
        "[eval.sampling]\nextra_body = { top_k = -1 }\n"
    )
    config = load(MINIMAL + text)
    assert (config.sampling.enable_thinking, config.sampling.top_k, config.sampling.min_p) == (False, 20, 0)
    assert (config.eval_sampling().top_k, config.eval_sampling().enable_thinking) == (0, False)
    assert load_run_config(saved(config)) == config


def saved(config: RunConfig) -> Path:
    path = config.runs_directory.parent / "again.toml"
    path.write_text(config.to_toml())
    return path


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("{ logit_bias = { '7' = -100 } }", "'sampling.extra_body.logit_bias': the tokens are then not drawn from"),
        ("{ repetition_penalty = 1.1 }", "logprobs would be wrong for the learner"),
        ("{ min_tokens = 5 }", "logprobs would be wrong for the learner"),
        ("{ return_token_ids = false }", "a run needs token ids"),
        ("{ n = 4 }", "rollouts_per_example says how often"),
        ("{ seed = 3 }", "the run's own 'seed' fixes every draw"),
        ("{ priority = 1 }", "inference.server_args"),
        ("{ chat_template_kwargs = { date = 'x' } }", "'sampling.extra_body.chat_template_kwargs.date': whet renders"),
        ("{ top_k = 'x' }", "'sampling.top_k'"),
        ("3", "'sampling.extra_body' should be a table"),
        ("{ chat_template_kwargs = 3 }", "chat_template_kwargs' should be a table"),
    ],
)
def test_fields_of_extra_body_that_a_run_cannot_have_are_refused_by_name_with_the_reason(load, fields, said) -> None:
    assert said in refused(load, MINIMAL, "--sampling.extra_body", fields)


def test_extra_body_that_contradicts_a_key_is_refused_and_one_that_repeats_it_is_not(load) -> None:
    text = MINIMAL + "[sampling]\ntop_k = 5\nextra_body = { top_k = 20 }\n"
    assert "'sampling.extra_body' has another value for 'sampling.top_k'; give it once" in refused(load, text)
    assert load(text.replace("20", "5")).sampling.top_k == 5


def test_nothing_is_refused_as_not_in_this_version() -> None:
    """A key has an effect, or is refused with the reason."""
    root = Path(__file__).parents[2]
    texts = [*(root / "src" / "whet").rglob("*.py"), *(root / "docs").rglob("*.md"), root / "README.md"]
    assert len(texts) > 500
    assert [str(path) for path in texts if "not in this version" in path.read_text().lower()] == []


@pytest.mark.parametrize("written", ["keys.env", "['keys.env']"])
def test_one_env_file_needs_no_brackets(load, written: str) -> None:
    assert load(MINIMAL, "--env_file", written).env_file == (Path("keys.env"),)


def test_a_key_of_the_file_below_a_table_is_told_where_it_belongs(load) -> None:
    said = refused(load, MINIMAL, "--sampling.env_file", "keys.env")
    assert "unknown key 'sampling.env_file'. Did you mean 'env_file'? In a file it goes above the first [table]" in said


BELOW = "[sampling]\nnum_gpus = 8\ntensor_parallel_size = 2\npipeline_parallel_size = 2\nmax_tokens = 9\n"


def test_keys_that_reference_configs_have_below_a_table_are_read_as_meant_with_one_warning(load, caplog) -> None:
    config = load(MINIMAL + BELOW + '[wandb]\nproject = "p"\nenv_file = ["keys.env"]\n')
    assert config.env_file == (Path("keys.env"),)
    assert config.wandb is not None
    assert config.wandb.project == "p"
    assert (config.deployment.num_gpus, config.sampling.max_tokens) == (8, 9)
    assert (config.inference.tensor_parallel_size, config.inference.pipeline_parallel_size) == (2, 2)
    (warning,) = caplog.messages
    for key in ("env_file", "num_gpus", "tensor_parallel_size", "pipeline_parallel_size"):
        assert f".{key} is read as {key}" in warning
    assert "run.toml" in warning
    assert "above the first [table] header" in warning
    assert load(config.to_toml()) == config
    assert len(caplog.messages) == 1
    assert "are the same key" in refused(load, MINIMAL + BELOW + "[deployment]\nnum_gpus = 2\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'env_file = "a"\n' + MINIMAL + '[wandb]\nenv_file = "b"\n',
            "'env_file' and 'wandb.env_file' are the same key",
        ),
        (MINIMAL + '[sampling]\nenv_file = "a"\n', "unknown key 'sampling.env_file'. Did you mean 'env_file'?"),
        (MINIMAL + "[wandb]\nnum_gpus = 2\n", "Did you mean 'deployment.num_gpus'?"),
        (MINIMAL + "[sampling]\ngpu_memory_utilization = 0.5\n", "'inference.gpu_memory_utilization'?"),
        (MINIMAL + "[wandb]\nmax_steps = 5\n", "Did you mean 'max_steps'?"),
    ],
)
def test_other_keys_below_a_table_they_are_not_of_are_refused_with_a_hint(load, text: str, says: str, caplog) -> None:
    assert says in refused(load, text)
    assert caplog.messages == []


def test_what_only_asynchronous_training_heeds_is_refused_for_synchronous_training(load) -> None:
    said = refused(load, MINIMAL, "--oversampling_factor", "1.5")
    assert "oversampling_factor = 1.5 has no effect: max_async_level is 0 (its default)" in said
    assert "Set max_async_level = 1, or remove oversampling_factor" in said
    said = refused(load, MINIMAL, "--max_off_policy_steps", "2", "--max_async_level", "0")
    assert "max_off_policy_steps = 2 has no effect: max_async_level is 0, so training is synchronous" in said
    config = load(MINIMAL, "--max_async_level", "1", "--oversampling_factor", "1.5", "--max_off_policy_steps", "2")
    assert (config.asynchronous, config.oversampling_factor, config.max_off_policy_steps) == (True, 1.5, 2)


def test_rollouts_may_not_be_too_old_before_they_are_begun(load) -> None:
    options = ("--max_async_level", "3", "--max_off_policy_steps", "2")
    assert "most rollouts would be too old" in refused(load, MINIMAL, *options)


def test_engine_and_learner_share_the_threads_when_both_compute_at_once(load) -> None:
    assert load(MINIMAL, "--deployment.threads", "3").threads() == (3, 3)
    assert load(MINIMAL, "--deployment.threads", "3", "--max_async_level", "1").threads() == (1, 2)
    assert load(MINIMAL, "--deployment.threads", "1", "--max_async_level", "1").threads() == (1, 1)


def test_other_spellings_mean_the_same(load) -> None:
    config = load(
        'model_name = "m"\nuse_lora = true\nlora_rank = 4\nlora_alpha = 8\nenv = {id = "x", args = {n = 1}}\n'
    )
    assert (config.model, config.lora.rank, config.lora.alpha) == ("m", 4, 8)
    assert config.env[0].args == {"n": 1}


def test_keys_of_engines_and_gpus_may_be_above_the_tables(load) -> None:
    written = "num_gpus = 8\ntensor_parallel_size = 4\npipeline_parallel_size = 1\ngpu_memory_utilization = 0.8\n"
    config = load(written + "max_model_len = 512\nnum_train_gpus = 4\nnum_infer_gpus = 4\n" + MINIMAL)
    assert (config.deployment.num_gpus, config.gpus.train, config.gpus.infer) == (8, 4, 4)
    inference = config.inference
    assert (inference.tensor_parallel_size, inference.gpu_memory_utilization, inference.max_model_len) == (4, 0.8, 512)
    assert "the same key" in refused(load, written + MINIMAL + "[deployment]\nnum_gpus = 8\n")
    for spelling in ("--num_gpus", "--deployment.num_gpus"):
        assert load(written + MINIMAL, spelling, "6").gpus.train == 2


def test_a_run_may_be_resumed_with_other_servers(load) -> None:
    run = RunDirectory(load().directory)
    run.open(load(MINIMAL, "--inference.base_url", "http://me:secret@host:8000").settled(), resume=False)
    run.close()
    run.check(load(), resume=True)
    flags = ("--inference.servers", "2", "--inference.server_args", "{ max_num_seqs = 4 }")
    run.check(load(MINIMAL, *flags, "--inference.base_url", "[]"), resume=True)
    with pytest.raises(RunError, match=r"inference\.max_model_len: was None, is 64"):
        run.check(load(MINIMAL, *flags, "--inference.max_model_len", "64"), resume=True)


def test_a_key_given_in_two_spellings_is_refused(load) -> None:
    assert "the same key" in refused(load, MINIMAL + "", "--model", "a", "--model_name", "b")


@pytest.mark.parametrize(
    ("env_id", "label"),
    [
        ("word-game", "word-game"),
        ("alice/word-game", "word-game"),
        ("alice/word-game@1.0", "word-game"),
        ("word-game@1.0", "word-game"),
        ("./games/word_game", "word_game"),
        ("./word.py", "word.py"),
        ("https://hub.example/word_game-1.0-py3-none-any.whl#sha256=" + 64 * "0", "word-game"),
    ],
)
def test_name_in_metrics_has_no_owner_and_no_version(load, env_id: str, label: str) -> None:
    assert load(MINIMAL.replace("reverse-text", env_id)).env[0].label == label


def test_one_environment_twice_needs_names(load) -> None:
    assert "name" in refused(load, MINIMAL + '[[env]]\nid = "reverse-text"\n')
    assert len(load(MINIMAL + '[[env]]\nid = "reverse-text"\nname = "b"\n').env) == 2


def test_greedy_sampling_cannot_train(load) -> None:
    assert "nothing to learn from" in refused(load, MINIMAL, "--sampling.temperature", "0")


def test_the_evaluation_inherits_the_sampling_of_training(load) -> None:
    sampling = load(MINIMAL, "--sampling.max_tokens", "33", "--eval.sampling.top_p", "0.5").eval_sampling()
    assert (sampling.max_tokens, sampling.top_p) == (33, 0.5)


def test_the_name_auto_takes_the_first_free_one(load, tmp_path: Path) -> None:
    assert load(MINIMAL, "--name", "auto").name == "run"
    (tmp_path / "runs" / "run").mkdir(parents=True)
    assert load(MINIMAL, "--name", "auto").name == "run-2"


def test_a_name_cannot_leave_the_runs_directory(load) -> None:
    assert "'name'" in refused(load, MINIMAL, "--name", "../x")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kl_estimator": "k1"}, "kl_coef is 0"),
        ({"reference": "m"}, "kl_coef is 0"),
        ({"reset_reference": 2}, "kl_coef is 0"),
        ({"reference_decay": 0.9, "kl_coef": 0.1, "reset_reference": 2}, "drop one of the two"),
        ({"length_penalty_full": 9}, "length_penalty is 0"),
        ({"length_penalty": 1}, "needs length_penalty_full"),
        ({"length_penalty": 1, "length_penalty_start": 9, "length_penalty_full": 9}, "should be below"),
        ({"repetition_ngram": 3}, "repetition_penalty is 0"),
        ({"reward_clip": "[1, 0]"}, "leaves nothing between"),
        ({"reward_norm": "batch", "advantage": "grpo_std"}, "use it with grpo or rloo"),
        ({"loss_args": "{a = 1}"}, "loss = masked_is does not use a"),
        ({"advantage_args": "{a = 1}"}, "unexpected keyword argument 'a'"),
        ({"loss": "ppoo"}, "Did you mean 'ppo'?"),
        ({"advantage": "grpo_sdt"}, "Did you mean 'grpo_std'?"),
    ],
)
def test_a_setting_of_the_algorithm_without_effect_or_sense_is_refused(load, settings, message) -> None:
    flags = [text for name, value in settings.items() for text in (f"--algorithm.{name}", str(value))]
    assert message in refused(load, MINIMAL, *flags)


def test_every_key_has_a_line_of_documentation() -> None:
    undocumented = []

    def walk(model: type, prefix: str) -> None:
        for name, field in model.model_fields.items():
            if not field.description:
                undocumented.append(prefix + name)
            if (section := section_of(field.annotation)) is not None:
                walk(section, f"{prefix}{name}.")

    walk(RunConfig, "")
    assert len(all_keys(RunConfig)) > 50
    assert undocumented == []
