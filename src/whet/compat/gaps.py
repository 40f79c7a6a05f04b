"""What the alias lacks of `verifiers` 0.1.14, and what to do instead. docs/migrating.md shows the same table.

It includes dependencies of `verifiers` that are extras of whet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Patterns of dotted names (`*` is anything), and what to do about them.
GAPS: dict[tuple[str, ...], str] = {
    ("verifiers.GRPO*", "verifiers.RLConfig", "verifiers.RLTrainer", "verifiers.get_model*", "verifiers.*_defaults"): (
        "training: `whet train run` with a config"
    ),
    ("verifiers.RendererClient", "verifiers.clients.RendererClient", "verifiers.clients.renderer_client"): (
        "token ids come from whet's own engines, which render with the same `renderers` package"
    ),
    (
        "verifiers.clients.NeMoRL*",
        "verifiers.clients.nemorl_*",
        "verifiers.clients.OpenAIChatCompletionsTokenClient",
        "verifiers.clients.openai_chat_completions_token_client",
    ): "`OpenAIChatCompletionsClient`, which takes over token ids where a server returns them",
    ("verifiers.clients.*_client.*", "verifiers.clients.client.AUTH_ERRORS"): (
        "the insides of clients: subclass `Client` or a client and override its hooks"
    ),
    (
        "verifiers.envs.experimental.cli_agent_env.*",
        "verifiers.envs.experimental.opencode_env.*",
        "verifiers.envs.experimental.rlm_env.*",
    ): "the hooks of `CliAgentEnv`, `OpenCodeEnv` and `RLMEnv`; what is inside is whet's own",
    ("verifiers.envs.experimental.opencode_rlm_env*",): "`OpenCodeEnv` or `RLMEnv`",
    ("verifiers.envs.experimental.harbor_env.*", "verifiers.Harbor*", "verifiers.v1.Harbor*"): (
        "`harbor:DIR`, whet's own environment of such tasks; servers of MCP start in `post_sandbox_setup`"
    ),
    (
        "verifiers.envs.experimental.composable.*",
        "verifiers.envs.experimental.utils*",
    ): "a `Harness` and a `TaskSet` of one's own: theirs need an image for each task, or clone repositories",
    (
        "verifiers.CLIHarness",
        "verifiers.MiniSWEAgent",
        "verifiers.OpenCode",
        "verifiers.Pi",
        "verifiers.RLM",
        "verifiers.v1.CLIHarness",
        "verifiers.v1.MiniSWEAgent",
        "verifiers.v1.OpenCode",
        "verifiers.v1.Pi",
        "verifiers.v1.RLM",
        "verifiers.v1.packages*",
    ): "`Harness(program={command = [...]})` with the command of that agent",
    ("verifiers.BrowserEnv", "verifiers.errors.BrowserSandboxError", "verifiers.envs.integrations.browser_env*"): (
        "a `StatefulToolEnv` whose tools drive a browser"
    ),
    (
        "verifiers.OpenEnvEnv",
        "verifiers.envs.integrations.openenv_env",
    ): "`load_environment('openenv:URL')`",
    ("verifiers.envs.experimental.mcp_env.*",): "`MCPEnv` itself; its connections are its own",
    ("verifiers.envs.sandbox_env.*", "verifiers.envs.python_env.*"): (
        "`SandboxError`, which failures of a sandbox are; `SandboxEnv` and `PythonEnv` otherwise"
    ),
    ("verifiers.rubrics.experimental*",): "a `RubricGroup` of a `MathRubric` and a `JudgeRubric`",
    ("verifiers.types.Endpoint*", "verifiers.types.Eval*"): "`configs/endpoints.toml` and `whet eval run`",
    ("verifiers.types.*task*", "verifiers.types.assert_json_serializable", "verifiers.types.ThinkingBlock"): (
        'the insides of states: read `state["task"]`'
    ),
    ("verifiers.utils.async_utils.*",): "`max_retries=` of `generate` and `evaluate`; the `tenacity` package",
    (
        "verifiers.utils.data_utils.*",
    ): "`load_example_dataset`, whose rows are ready; any dataset is made ready by its environment",
    (
        "verifiers.utils.env_utils.*",
        "verifiers.utils.env_config_utils",
    ): "`load_environment`, which reads typed configs",
    ("verifiers.utils.error_utils.*",): "`error_info`, and the errors themselves",
    ("verifiers.utils.logging_utils.*",): "the standard `logging`",
    ("verifiers.utils.save_utils.*",): "`save_results=True` and what `evaluate` returns",
    ("verifiers.utils.thread_utils",): "`asyncio.to_thread`; rollouts share one event loop",
    (
        "verifiers.utils.display_utils",
        "verifiers.utils.eval_*",
        "verifiers.utils.heartbeat",
        "verifiers.utils.import_utils",
        "verifiers.utils.install_utils*",
        "verifiers.utils.interception_utils",
        "verifiers.utils.process_utils",
        "verifiers.utils.serve_utils",
        "verifiers.utils.tunnel_utils",
        "verifiers.utils.version_utils",
    ): "the insides of its commands and servers: the `whet` command",
    (
        "verifiers.v1.utils*",
        "verifiers.v1.runtime",
        "verifiers.v1.*signals",
        "verifiers.v1.add_*",
        "verifiers.v1.score_*",
        "verifiers.v1.config.*",
        "verifiers.v1.state.*",
        "verifiers.v1.task.*",
        "verifiers.v1.taskset.*",
        "verifiers.v1.toolset.*",
        "verifiers.v1.user.*",
    ): "the insides of tasksets and harnesses: `Taskset`, `Harness`, `Toolset`, `User` and their configs",
}

# The same for its commands and servers, of which environments need nothing, and for packages of hosted services.
SERVICES: dict[tuple[str, ...], str] = {
    ("verifiers.scripts*", "verifiers.cli*"): "the `whet` command",
    ("verifiers.gepa*",): "`whet gepa run`",
    ("verifiers.rl*",): "`whet train run` with a config",
    ("verifiers.serve*",): "`workers=` of an evaluation, whose environments run in processes of their own",
    (
        "prime_sandboxes*",
    ): "the methods of `AsyncSandboxClient`, whose sandboxes are this machine's; or install prime-sandboxes",
    ("prime_tunnel*",): "a `Harness` with a command, which reaches its model without a tunnel; or install prime-tunnel",
}

# Modules that `verifiers` installs as dependencies, and the extra of whet that installs them.
BROUGHT = {
    "anthropic": "anthropic",
    "datasets": "datasets",
    "math_verify": "math",
    "mcp": "mcp",
    "nltk": "ta",
    "openai": "openai",
    "reasoning_gym": "rg",
    "textarena": "ta",
}


def instead_of(name: str) -> str | None:
    """What to do about a missing name or module, by its dotted name."""
    for patterns, instead in [*GAPS.items(), *SERVICES.items()]:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            return instead
    return None


def advice_on_requirements(lines: Sequence[str]) -> str:
    """Advice for a package with these requirements where no `verifiers` 0.1 would do; otherwise empty."""
    from packaging.requirements import InvalidRequirement, Requirement

    for line in lines:
        with contextlib.suppress(InvalidRequirement):
            wanted = Requirement(line)
            if wanted.name == "verifiers" and not may_be_of_the_contract(wanted):
                advice = "whet replaces verifiers 0.1 only; a taskset of 0.4 has the id v1:FOLDER"
                return f" Its package requires {wanted}, and {advice}."
    return ""


def may_be_of_the_contract(requirement: Requirement) -> bool:
    """Whether a version 0.1.x would do, also one that is pinned."""
    pinned = [part.version for part in requirement.specifier if part.operator in ("==", "~=", "<=", ">=")]
    versions = [f"0.1.{patch}" for patch in range(20)] + [version for version in pinned if version.startswith("0.1.")]
    return any(requirement.specifier.filter(versions, prereleases=True))
