"""The differences that are meant, by their numbers in docs/design/environments.md.

Entries say where a difference may show and nothing about its values; each repair has a contract test for those. An
entry that covers no difference any more fails a test, so that this list cannot outlive what it says.
"""

from __future__ import annotations

from sides import Expected

# What an errored rollout has under 0.1.14 all the same: a reward, metrics, a place in every average.
UNSCORED = (
    "rows*.reward",
    "rows*.metrics.*",
    "states.*.reward",
    "states.*.metrics.*",
    "states.*.advantage",
    "states.*.trajectory.*.reward",
    "states.*.trajectory.*.advantage",
    "metadata*.avg_reward",
    "metadata*.avg_metrics.*",
    "metadata*.pass_*_k.*",
)
BECAME_ERRORED = (
    *UNSCORED,
    "rows*.error*",
    "rows*.long_error_chain",
    "states.*.error",
    "metadata*.avg_error",
    "metadata*.num_errors",
)
MESSAGES_OF_ERRORS = ("rows*.error.error_chain_repr", "rows*.error_chain")
ANSWERS_OF_TOOLS = (
    "requests.*.content",
    "rows*.completion.*.content",
    "states.*.completion.*.content",
    "states.*.trajectory.*.prompt.*.content",
)

ENVIRONMENTS = (
    Expected(1, "*", ("states.*.advantage", "states.*.trajectory.*.reward")),
    Expected(2, "*judge*", ("more.*.content", "states.*.judge_response.*")),
    Expected(3, "a reward function that raises", BECAME_ERRORED),
    Expected(3, "a reward that is no number", BECAME_ERRORED),
    Expected(3, "a group function that raises", BECAME_ERRORED),
    Expected(3, "a group function that returns too few numbers", ("runs",)),
    Expected(3, "a reward function that names what there is not", BECAME_ERRORED),
    Expected(3, "a judge that fails", (*BECAME_ERRORED, "more")),
    Expected(3, "a judge that answers with nothing", (*BECAME_ERRORED, "states.*.judge_response")),
    Expected(3, "errored rollouts are told from rewards", UNSCORED),
    Expected(3, "a model error, an invalid and an empty response make the rollout errored", UNSCORED),
    Expected(3, "what a client raises is a model error", UNSCORED),
    Expected(3, "an error of the library's kind in setup*", UNSCORED),
    Expected(3, "when retries run out the error stays", UNSCORED),
    Expected(3, "other errors are not tried again", UNSCORED),
    Expected(3, "stop_errors*", UNSCORED),
    Expected(3, "a group in which one rollout failed is scored without it", UNSCORED),
    Expected(3, "*", ("metadata*.num_errors", "metadata*.error_examples*", "rows*.error.message")),
    Expected(4, "an error of another kind in*", ("runs",)),
    Expected(4, "an error in update_tool_args", ("runs",)),
    Expected(
        4,
        "an error of the library's kind in a tool",
        (*BECAME_ERRORED, "requests", "rows*.completion", "rows*.stop_condition", "rows*.timing.*", "states*"),
    ),
    Expected(5, "without a rubric and scored one by one", ("runs",)),
    Expected(8, "a group beside an environment in a group, whose routes differ in length", ("runs",)),
    Expected(8, "rows of a question in parts", ("runs",)),
    Expected(10, "a seed leaves the environment's own order alone", ("more.order.*",)),
    Expected(11, "*a call of a tool that there is not", ANSWERS_OF_TOOLS),
    Expected(12, "what a model writes for a hidden argument that is not filled in", ("*.account.*", *ANSWERS_OF_TOOLS)),
    Expected(13, "*", ("*sampling_args.n", "*sampling_args.extra_body")),
    Expected(14, "*", ("metadata*.version_info.*", "metadata on disk.says when")),
    Expected(15, "*a group*", ("rows*.metrics.*", "states.*.metrics.*", "metadata*.avg_metrics.*")),
    Expected(15, "the environments of a group keep their tools", ("rows*.metrics.*", "*.metrics.*", "*.avg_metrics.*")),
    Expected(15, "without names the environments of a group are numbered", ("*.metrics.*", "*.avg_metrics.*")),
    Expected(16, "*is refused", ("raised",)),
    Expected(16, "group functions cannot score one by one", ("raised",)),
    Expected(16, "as many weights as functions", ("raised",)),
    Expected(16, "a run does not go on with fewer examples", ("raised",)),
    Expected(17, "what a client raises is a model error", MESSAGES_OF_ERRORS),
    Expected(17, "stop_errors*", MESSAGES_OF_ERRORS),
    Expected(18, "of a group, what is tried again", ("requests", "rows.*.completion.0.content", "states*")),
    Expected(18, "a rollout that failed for want of a machine is tried again", ("states",)),
    Expected(18, "when retries run out the error stays", ("states",)),
    Expected(19, "setup handlers of a rollout", ("rows.*.prepared", "states.*.prepared")),
    Expected(19, "clean-up handlers may take the task", ("more.*",)),
    Expected(20, "*arguments that are*no object", ANSWERS_OF_TOOLS),
    Expected(21, "a partial and an object that can be called are reward functions", ("runs",)),
    Expected(23, "a judge with the library's own prompt", ("more.*.content", "states.*.judge_response.*")),
    Expected(24, "rows are shuffled by seed", ("more.order.*",)),
    Expected(29, "a column called task that is a dict", ("rows.*.answer", "states.*.input.*")),
    Expected(29, "a column called task that is text", ("runs",)),
    Expected(30, "arguments that are no JSON", ANSWERS_OF_TOOLS),
    Expected(31, "*", ("rows*.metrics are columns too",)),
    Expected(32, "mathematical answers*", ("rows*.8.reward", "rows*.8.*correct_answer", "states.8.*")),
    Expected(
        33,
        "mathematical answers*",
        ("rows*.9.reward", "rows*.9.*correct_answer", "states.9.*", "metadata*.avg_*", "metadata*.pass_*"),
    ),
    Expected(25, "tokens are cut to max_seq_len", ("*.tokens.policy_version",)),
    Expected(
        25,
        "steps may bring rewards, advantages and extras*",
        ("states.*.steps_with_own_advantage", "states.*.steps_with_own_reward"),
    ),
)

FUNCTIONS = (
    Expected(3, "helpers for errors", (".*.message",)),
    Expected(16, "messages are read from dicts and text", (".18",)),
    Expected(22, "the schema of numbers", ("parameters.properties.b.description",)),
    Expected(22, "the schema of collections", ("",)),
    Expected(22, "the schema of bare", ("",)),
    Expected(22, "the schema of unhinted", ("",)),
    Expected(22, "the schema of gathers", ("",)),
    Expected(22, "the schema of nested_default", ("",)),
    Expected(26, "messages are read from dicts and text", (".16.0.tool_calls",)),
    Expected(32, "answers are extracted", (".27.*",)),
    Expected(32, "MaybeThinkParser parses texts", ("\\boxed {1}", "*<think>*")),
    Expected(32, "MaybeThinkParser finds the answer in conversations and texts", (".*",)),
    Expected(26, "fields of messages are read by key, by attribute and by get", (".*.0", ".*.3", ".*.4")),
)

PACKAGES = (
    Expected(1, "*", ("states.*.advantage", "states.*.trajectory.*.reward")),
    Expected(3, "*", ("metadata*.num_errors", "metadata*.error_examples*", "rows*.error.message")),
    Expected(13, "*", ("*sampling_args.n", "*sampling_args.extra_body")),
    Expected(14, "*", ("metadata*.version_info.*",)),
    Expected(31, "*", ("rows*.metrics are columns too",)),
    Expected(
        28,
        "an environment as Gym has them",
        (
            "requests",
            "states.*.steps_with_own_reward",
            "rows.*.completion",
            "rows.*.timing.turns*",
            "states.*.completion",
            "states.*.trajectory",
            "states.*.timing.turns*",
            "states.*.final_env_response*",
            "*.metrics.num_turns",
            "metadata.avg_metrics.num_turns",
        ),
    ),
)
