"""The coding agents that whet knows how to run, as data: package, version, command, settings.

A preset points its agent at the model of the rollout, and switches off what would leave the sandbox or would not be
part of the attempt: telemetry, updates, titles of conversations. In its texts stand

    {root}     where the agent's package is shown in the sandbox
    {url}      the address of the rollout's model, without /v1
    {key}      the key of the rollout's model
    {home}     the home directory in the sandbox
    {arch}     x64 or arm64
    {task}     what is to be done
    {context}  tokens of prompt and answer together that the agent may count on
    {output}   tokens of an answer

Versions are those that `tests/tasksets/agents` runs unmodified.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from whet.errors import ConfigError

# Runs a module from a folder, without showing that folder to the programs that the module starts.
RUN_MODULE = """import runpy, sys
sys.path.insert(0, sys.argv[1])
del sys.argv[:2]
runpy.run_module(sys.argv[0], {}, "__main__", True)"""


@dataclass(frozen=True, slots=True)
class AgentPreset:
    """A coding agent: what to install, how to start it, and what its requests look like."""

    name: str
    registry: Literal["npm", "pypi", "whet"]
    package: str
    version: str
    api: Literal["chat", "responses", "messages"]
    command: tuple[str, ...]
    about: str  # what it leaves out here, and what is special about its requests
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))  # path below home: content
    programs: tuple[str, ...] = ()  # of this machine
    helper_models: tuple[str, ...] = ()  # in its settings, of what is not for the task and so not trained
    requirements: tuple[str, ...] = ()  # packages that it needs and does not declare


_MINI_SWE_AGENT = AgentPreset(
    name="mini-swe-agent",
    registry="pypi",
    package="mini-swe-agent",
    version="2.4.6",
    requirements=("mcp",),  # of its LiteLLM
    api="chat",
    command=(
        *("python3", "-c", RUN_MODULE, "{root}", "minisweagent.run.mini"),
        *("-y", "--exit-immediately", "--model", "openai/policy", "--task={task}"),
    ),
    env={
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    about="One conversation, one tool: bash.",
)
_BASH = AgentPreset(
    name="bash",
    registry="whet",
    package="",
    version="",
    api="chat",
    command=("python3", "{home}/.whet-agent.py"),
    about="whet's own: the model, a shell and no system prompt; args = ['--fenced'] for models without tool calls.",
)
_CODEX = AgentPreset(
    name="codex",
    registry="npm",
    package="@openai/codex",
    version="0.171.0",
    programs=("node",),
    api="responses",
    command=(
        *("node", "{root}/node_modules/@openai/codex/bin/codex.js", "exec", "--skip-git-repo-check"),
        *("--dangerously-bypass-approvals-and-sandbox", "-"),
    ),
    stdin="{task}",
    files={
        ".codex/config.toml": """
model = "policy"
model_provider = "whet"
model_context_window = {context}
check_for_update_on_startup = false
web_search = "disabled"
[features]
apps = false
goals = false
image_generation = false
plugins = false
remote_plugin = false
[agents]
enabled = false
[model_providers.whet]
name = "whet"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[analytics]
enabled = false
[history]
persistence = "none"
"""
    },
    about="Without sub-agents, plugins, goals, web search and history.",
)
_OPENCODE = AgentPreset(
    name="opencode",
    registry="npm",
    package="opencode-ai",
    version="1.18.33",
    api="chat",
    command=("{root}/node_modules/opencode-linux-{arch}/bin/opencode", "run"),
    stdin="{task}",
    helper_models=("helper",),
    env={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_CLAUDE_CODE": "1",
        "OPENCODE_PURE": "1",
    },
    files={
        ".config/opencode/opencode.json": """{
"autoupdate": false,
"share": "disabled",
"model": "whet/policy",
"small_model": "whet/helper",
"permission": "allow",
"agent": {"title": {"disable": true}},
"provider": {"whet": {
  "npm": "@ai-sdk/openai-compatible",
  "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
  "models": {
    "policy": {"tool_call": true, "limit": {"context": {context}, "output": {output}}},
    "helper": {"limit": {"context": {context}, "output": {output}}}
  }
}}}"""
    },
    about="Without titles of conversations, plugins and updates. Sub-agents are conversations of their own.",
)
_CLAUDE = AgentPreset(
    name="claude-code",
    registry="npm",
    package="@anthropic-ai/claude-code",
    version="2.1.332",
    api="messages",
    command=(
        *("{root}/node_modules/@anthropic-ai/claude-code-linux-{arch}/claude", "--print", "--model", "policy"),
        "--dangerously-skip-permissions",
    ),
    stdin="{task}",
    helper_models=("helper",),
    env={
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "helper",
        "ANTHROPIC_SMALL_FAST_MODEL": "helper",
        "CLAUDE_CODE_SUBAGENT_MODEL": "policy",  # whichever model the policy asks for
        "CLAUDE_CODE_SUBAGENT_MODEL_FORCE": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_FEATURE_FLAGS": "1",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "{context}",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "{output}",
        "DISABLE_AUTOUPDATER": "1",
        "ENABLE_TOOL_SEARCH": "false",
    },
    about="Without tool search, telemetry and updates. Sub-agents and compaction are conversations of their own.",
)
_PI = AgentPreset(
    name="pi",
    registry="npm",
    package="@mariozechner/pi-coding-agent",
    version="0.73.1",
    programs=("node",),
    api="chat",
    command=(
        *("node", "{root}/node_modules/@mariozechner/pi-coding-agent/dist/cli.js", "--print", "--no-session"),
        *("--provider", "whet", "--model", "policy"),
    ),
    stdin="{task}",
    env={"PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"},
    files={
        ".pi/agent/models.json": """{"providers": {"whet": {
"baseUrl": "{url}/v1",
"api": "openai-completions",
"apiKey": "OPENAI_API_KEY",
"models": [{"id": "policy", "contextWindow": {context}, "maxTokens": {output}}]
}}}"""
    },
    about="Without sessions, telemetry and updates.",
)
_QWEN_CODE = AgentPreset(
    name="qwen-code",
    registry="npm",
    package="@qwen-code/qwen-code",
    version="0.15.10",
    programs=("node",),
    api="chat",
    command=("node", "{root}/node_modules/@qwen-code/qwen-code/cli.js", "--yolo", "--auth-type", "openai"),
    stdin="{task}",
    env={"OPENAI_MODEL": "policy"},
    files={
        ".qwen/settings.json": """{
"telemetry": {"enabled": false},
"privacy": {"usageStatisticsEnabled": false},
"general": {"enableAutoUpdate": false, "disableUpdateNag": true},
"memory": {"enableManagedAutoMemory": false, "enableManagedAutoDream": false, "enableAutoSkill": false}
}"""
    },
    about="Without memory extraction, telemetry and updates. The last version for Node 20.",
)
AGENTS: Mapping[str, AgentPreset] = {
    preset.name: preset for preset in (_BASH, _MINI_SWE_AGENT, _CODEX, _OPENCODE, _CLAUDE, _PI, _QWEN_CODE)
}


def find_agent(name: str) -> AgentPreset:
    """Raises `ConfigError`, with the list, for an agent that is unknown."""
    if name not in AGENTS:
        raise ConfigError(f"there is no agent '{name}'; there are: {', '.join(AGENTS)}.")
    return AGENTS[name]
