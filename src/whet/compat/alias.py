"""`import verifiers` as whet: environments written for `verifiers` 0.1 run unmodified, in this process.

Every module of the 0.1 package that environments import has a stand-in module here, whose names are looked up in whet;
a class imported by either name is the same class. The same holds for the package of its hosted sandboxes, unless that
is installed. Names that are not in the table are missing; `compat/gaps.py` has the replacements.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import re
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from whet.compat.gaps import BROUGHT, instead_of
from whet.errors import ConfigError
from whet.system.origins import note_importer

CONTRACT_VERSION = "0.1.14"
_HERE, _AGENTS = "whet.compat", "whet.compat.experimental"
_CLI_AGENTS = f"{_AGENTS}.cli_agent_env:AgentError,CliAgentEnv,CliAgentMonitorRubric"

# Where the names of each module are found, in this order: all public ones of a module, or those after the colon.
_TYPES = (
    "whet.types",
    "whet.content",
    "whet.timing:TimeSpans",
    "whet.clients.config",
    f"{_HERE}.names:BaseRolloutInput,CustomBaseModel,ErrorInfo,GroupRewardFunc,IndividualRewardFunc,JsonPrimitive,"
    "LogCallback,MessageType,ProgressCallback,RolloutScore,RolloutScores,StartCallback,TASK_INPUT_FIELDS,VersionInfo",
)
_COMPOSABLE = (
    f"{_AGENTS}.composable_env:ComposableEnv",
    f"{_AGENTS}.composable_tasks:SandboxSpec,SandboxTaskSet,TaskSet,discover_sibling_dir",
)
_COMPOSED = "verifiers.envs.experimental.composable"
_HOSTED_SANDBOXES = "prime_sandboxes"
_HOSTED_ERRORS = (
    "APIError,DownloadTimeoutError,SandboxFileNotFoundError,SandboxImagePullError,SandboxNotRunningError,SandboxOOMError,"
    "SandboxTimeoutError,UploadTimeoutError"
)
_MODULES: dict[str, tuple[str, ...]] = {
    _HOSTED_SANDBOXES: (
        "whet.envs.sandboxed.client:BackgroundJob,BackgroundJobStatus,CommandResponse,CommandTimeoutError,FileUploadResponse,"
        "ReadFileResponse",
        "whet.envs.sandboxed.request:CreateSandboxRequest",
        f"{_HERE}.hosted_sandboxes:APIClient,AdvancedConfigs,AsyncSandboxClient,Sandbox,"
        f"ThreadedAsyncSandboxClient,{_HOSTED_ERRORS}",
    ),
    f"{_HOSTED_SANDBOXES}.core": (f"{_HERE}.hosted_sandboxes:APIClient,APIError",),
    f"{_HOSTED_SANDBOXES}.exceptions": (
        "whet.envs.sandboxed.client:CommandTimeoutError",
        f"{_HERE}.hosted_sandboxes:{_HOSTED_ERRORS}",
    ),
    "verifiers": ("whet", *_TYPES, f"{_HERE}.names:ToolRubric,quiet_verifiers"),
    "verifiers.types": _TYPES,
    "verifiers.errors": ("whet.errors",),
    "verifiers.decorators": ("whet.decorators", f"{_HERE}.names:SignalStage"),
    "verifiers.envs": (),
    "verifiers.envs.environment": (
        "whet.envs.environment",
        f"{_HERE}.names:EnvironmentTeardown,RolloutCleanup,StopCondition",
    ),
    "verifiers.envs.singleturn_env": ("whet.envs.multiturn_env",),
    "verifiers.envs.multiturn_env": ("whet.envs.multiturn_env",),
    "verifiers.envs.tool_env": ("whet.envs.tool_env",),
    "verifiers.envs.stateful_tool_env": ("whet.envs.tool_env", f"{_HERE}.names:filter_signature"),
    "verifiers.envs.sandbox_env": (
        "whet.envs.sandbox_env",
        f"{_HERE}.hosted_sandboxes:AdvancedConfigs,ThreadedAsyncSandboxClient",
    ),
    "verifiers.envs.python_env": ("whet.envs.python_env",),
    "verifiers.envs.env_group": ("whet.envs.env_group",),
    "verifiers.envs.experimental": (*_COMPOSABLE, f"{_HERE}.sandbox_mixin:SandboxMixin"),
    "verifiers.envs.experimental.gym_env": ("whet.integrations.gym_env",),
    "verifiers.envs.experimental.sandbox_mixin": (
        f"{_HERE}.sandbox_mixin:SandboxMixin,SandboxMonitorRubric,SandboxTimeouts,is_retryable_sandbox_api_error,"
        "is_retryable_sandbox_read_error",
        "whet.envs.sandboxed.client:SandboxCreationError,SandboxNotReadyError,SandboxSetupError",
        f"{_HERE}.hosted_sandboxes:ThreadedAsyncSandboxClient",
    ),
    "verifiers.envs.experimental.mcp_env": ("whet.envs.mcp_env",),
    "verifiers.envs.experimental.cli_agent_env": (_CLI_AGENTS,),
    "verifiers.envs.experimental.harbor_env": (),
    "verifiers.envs.experimental.opencode_env": (f"{_AGENTS}.opencode_env",),
    "verifiers.envs.experimental.opencode_qa_env": (f"{_AGENTS}.opencode_env:OpenCodeQAEnv",),
    "verifiers.envs.experimental.rlm_env": (f"{_AGENTS}.rlm_env:RLMEnv", f"{_AGENTS}.rlm_metrics:RLMMonitorRubric"),
    "verifiers.envs.experimental.composable": _COMPOSABLE,
    "verifiers.envs.experimental.composable.composable_env": _COMPOSABLE[:1],
    "verifiers.envs.experimental.composable.harness": (),
    "verifiers.envs.experimental.composable.task": _COMPOSABLE[1:],
    **{f"{_COMPOSED}.harnesses{one}": (f"{_AGENTS}.composable_harnesses",) for one in ("", ".opencode", ".rlm")},
    **{f"{_COMPOSED}.tasksets{one}": (f"{_AGENTS}.math_tasks:MathTaskSet",) for one in ("", ".math")},
    "verifiers.envs.integrations": (),
    "verifiers.envs.integrations.reasoninggym_env": ("whet.integrations.reasoning_gym_env",),
    "verifiers.envs.integrations.textarena_env": ("whet.integrations.textarena_env",),
    "verifiers.rubrics": (),
    "verifiers.rubrics.rubric": ("whet.rubrics.rubric",),
    "verifiers.rubrics.rubric_group": ("whet.rubrics.rubric_group",),
    "verifiers.rubrics.math_rubric": ("whet.rubrics.math_rubric",),
    "verifiers.rubrics.judge_rubric": ("whet.rubrics.judge_rubric",),
    "verifiers.rubrics.experimental": (),
    "verifiers.rubrics.experimental.hybrid_math_rubric": (
        f"{_HERE}.hybrid_math_rubric:DEFAULT_JUDGE_PROMPT,HybridMathRubric,RemoteHybridMathRubric",
    ),
    "verifiers.rubrics.tool_rubric": (f"{_HERE}.names:ToolRubric",),
    "verifiers.parsers": (),
    "verifiers.parsers.parser": ("whet.parsers.parser",),
    "verifiers.parsers.think_parser": ("whet.parsers.think_parser:ThinkParser",),
    "verifiers.parsers.maybe_think_parser": ("whet.parsers.think_parser:MaybeThinkParser",),
    "verifiers.parsers.xml_parser": ("whet.parsers.xml_parser",),
    "verifiers.clients": (
        "whet:Client,OpenAIChatCompletionsClient,OpenAICompletionsClient,OpenAIResponsesClient,AnthropicMessagesClient",
        "whet.clients.make:resolve_client",
    ),
    "verifiers.clients.client": ("whet.clients.client",),
    "verifiers.clients.openai_chat_completions_client": ("whet.clients.providers.openai_chat",),
    "verifiers.clients.openai_completions_client": ("whet.clients.providers.openai_completions",),
    "verifiers.clients.openai_responses_client": ("whet.clients.providers.openai_responses",),
    "verifiers.clients.anthropic_messages_client": ("whet.clients.providers.anthropic_messages",),
    "verifiers.v1": (
        "whet:Env,EnvConfig,Harness,HarnessConfig,MCPTool,MCPToolConfig,SandboxConfig,Task,Taskset,TasksetConfig,Toolset,"
        "ToolsetConfig,User,UserConfig,advantage,cleanup,metric,reward,setup,stop,teardown,update",
        "whet.tasksets.config:Config",
    ),
    "verifiers.v1.config": ("whet.tasksets.config",),
    "verifiers.v1.env": ("whet.tasksets.env:Env",),
    "verifiers.v1.harness": ("whet.tasksets.harness:Harness",),
    "verifiers.v1.task": ("whet.tasksets.task:Task",),
    "verifiers.v1.taskset": ("whet.tasksets.taskset:Taskset",),
    "verifiers.v1.toolset": ("whet.tasksets.tools.toolset:Toolset,MCPTool",),
    "verifiers.v1.user": ("whet.tasksets.part:User",),
    "verifiers.utils": (),
    "verifiers.utils.async_utils": (
        "whet.calls:maybe_await",
        f"{_HERE}.names:NullAsyncContext,NullContext,maybe_call_with_named_args,maybe_semaphore,with_sem",
    ),
    "verifiers.utils.client_utils": (
        f"{_HERE}.clients:ClientConfig,load_prime_config,resolve_client_config,resolve_client_configs,"
        "setup_anthropic_client,setup_http_client,setup_openai_client",
    ),
    "verifiers.utils.config_utils": ("whet:ensure_keys,MissingKeyError",),
    "verifiers.utils.data_utils": (
        "whet.parsers.parser:extract_boxed_answer,extract_hash_answer",
        "whet:load_example_dataset",
        f"{_HERE}.names:BOXED_SYSTEM_PROMPT,THINK_BOXED_SYSTEM_PROMPT,strip_non_numeric",
    ),
    "verifiers.utils.error_utils": (
        f"{_HERE}.names:ErrorChain,get_error_chain,get_vf_error_chain",
        "whet.rollouts.results:error_info",
    ),
    "verifiers.utils.env_utils": ("whet:load_environment",),
    "verifiers.scripts": (),
    "verifiers.scripts.eval": (f"{_HERE}.clients:get_env_eval_defaults,load_endpoints",),
    "verifiers.utils.eval_utils": (f"{_HERE}.names:quiet_datasets", f"{_HERE}.clients:load_endpoints"),
    "verifiers.utils.logging_utils": (
        "whet.system.logs",
        f"{_HERE}.names:JsonFormatter,print_size,print_time,quiet_verifiers,truncate",
    ),
    "verifiers.utils.message_utils": ("whet.messages:normalize_messages", f"{_HERE}.messages"),
    "verifiers.utils.metric_utils": (f"{_HERE}.metrics",),
    "verifiers.utils.path_utils": (
        f"{_HERE}.results:find_latest_incomplete_eval_results_path,get_eval_results_path,get_eval_runs_dir,"
        "get_gepa_results_path,get_results_path,is_valid_eval_results_path,write_temp_file",
    ),
    "verifiers.utils.response_utils": (
        f"{_HERE}.names:parse_response_message,parse_response_messages,parse_response_tokens",
    ),
    "verifiers.utils.save_utils": (
        "whet.rollouts.generate:GenerateOutputsBuilder",
        "whet.rollouts.results:state_to_output",
        "whet.rollouts.row_log:load_outputs",
        f"{_HERE}.metrics:extract_usage_tokens",
        f"{_HERE}.results:get_hf_hub_dataset_name,is_json_serializable,make_dataset,make_serializable,"
        "push_results_to_hf_hub,sanitize_metadata,save_metadata,save_new_outputs,save_outputs,states_to_outputs,"
        "validate_resume_metadata",
    ),
    "verifiers.utils.threaded_sandbox_client": (f"{_HERE}.hosted_sandboxes:ThreadedAsyncSandboxClient",),
    "verifiers.utils.tool_utils": (f"{_HERE}.names:VALID_TOOL_CONTENT_PART_TYPES,is_valid_tool_content_parts",),
    "verifiers.utils.usage_utils": (f"{_HERE}.metrics:StateUsageTracker,extract_usage_tokens",),
    "verifiers.v1.utils": (),
    "verifiers.v1.utils.endpoint_utils": (f"{_HERE}.names:assistant_completion_from_messages",),
    "verifiers.v1.utils.json_utils": (f"{_HERE}.names:json_args",),
    "verifiers.v1.utils.judge_utils": (
        f"{_HERE}.names:clamp_float,completion_text,parse_judge_json,truncate_command_record,truncate_text",
    ),
}
_EXPERIMENTAL = "verifiers.envs.experimental"
_RENAMED = {
    ("verifiers", "CliAgentEnv"): f"{_AGENTS}.cli_agent_env:CliAgentEnv",
    ("verifiers", "HarborEnv"): f"{_AGENTS}.harbor_env:HarborAgentEnv",
    (f"{_EXPERIMENTAL}.harbor_env", "HarborEnv"): f"{_AGENTS}.harbor_env:HarborAgentEnv",
    **{
        (f"{_EXPERIMENTAL}{module}", name): f"{_AGENTS}.{home}"
        for name, home in (("Task", "composable_tasks:ComposableTask"), ("Harness", "composable_env:ComposableHarness"))
        for module in ("", ".composable", f".composable.{name.lower()}")
    },
    (_HOSTED_SANDBOXES, "SandboxClient"): f"{_HERE}.hosted_sandboxes:BlockingSandboxClient",
    ("verifiers.utils.usage_utils", "compute_context_token_metrics"): "whet.clients.usage:context_tokens",
    ("verifiers", "EndpointClientConfig"): "whet.clients.config:EndpointConfig",
    ("verifiers.types", "EndpointClientConfig"): "whet.clients.config:EndpointConfig",
    ("verifiers.envs.env_group", "ENV_GROUP_INFO_KEY"): "whet.envs.env_group:ROUTE_KEY",
    ("verifiers.clients.openai_responses_client", "OPENAI_RESPONSES_OUTPUT_FIELD"): (
        "whet.clients.providers.openai_responses:OUTPUT_FIELD"
    ),
    ("verifiers.utils.tool_utils", "convert_func_to_tool_def"): "whet.envs.tool_schemas:tool_from_function",
    ("verifiers.v1", "State"): "whet.tasksets.state:TaskState",
    ("verifiers.v1.state", "State"): "whet.tasksets.state:TaskState",
}
_MODULES.update({module: () for module, _ in _RENAMED if module not in _MODULES})
# The command of whet that the `main` of a script runs, or why there is none.
_SCRIPTS: dict[str, tuple[str, ...] | str] = {
    "build": "vf-build makes an image for an OpenEnv server, which whet has not: write a MultiTurnEnv instead.",
    "eval": ("eval", "run"),
    "gepa": ("gepa", "run"),
    "init": ("env", "init"),
    "install": ("env", "install"),
    "prime_rl": "prime-rl starts another library's training: use `whet train run` with a config instead.",
    "rl": ("train", "run"),
    "setup": ("lab", "setup"),
    "train": ("train", "run"),
    "tui": ("view",),
    "vllm": ("serve",),
}
_SCRIPTS = {f"verifiers.scripts.{name}": runs for name, runs in _SCRIPTS.items()}
_MODULES.update({module: () for module in _SCRIPTS if module not in _MODULES})


def install_verifiers_alias() -> None:
    """Make `import verifiers` and its submodules resolve to whet in this process.

    It hides an installed `verifiers`. Raises `ConfigError` if that one has been imported already.
    """
    loaded = sys.modules.get("verifiers")
    if loaded is not None and not isinstance(loaded, _StandIn):
        raise ConfigError(
            f"verifiers is imported already, from {getattr(loaded, '__file__', None) or 'elsewhere'}. "
            "Call whet.install_verifiers_alias() before anything imports it."
        )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def alias_where_needed() -> None:
    """`install_verifiers_alias`, unless a `verifiers` of the 0.1 contract is installed or any is imported."""
    if "verifiers" not in sys.modules and not _contract_is_installed():
        install_verifiers_alias()


def advice_on(error: BaseException) -> str:
    """Advice for an import that failed on a name that whet lacks, or on a dependency of `verifiers`; possibly empty."""
    if not isinstance(error, ImportError) or error.name is None:
        return ""
    extra = BROUGHT.get(error.name.partition(".")[0])
    if isinstance(error, ModuleNotFoundError) and extra is not None:
        return f" Install it with: pip install 'whet[{extra}]'."
    if isinstance(error, ModuleNotFoundError):  # the message on a module of `verifiers` has the advice
        return "" if error.name.startswith("verifiers") else _advice(error.name)
    # Up to Python 3.11, only the message of `from verifiers import X` has X.
    wanted = re.match(r"cannot import name '(\w+)'", str(error))
    return _advice(f"{error.name}.{wanted[1]}") if wanted is not None else ""


def _run_script(module: str, argv: Sequence[str] | None = None) -> int:
    """`main` of a module of `verifiers.scripts`, with these arguments or this process's; returns the exit code."""
    command = _SCRIPTS[module]
    if isinstance(command, str):
        raise ConfigError(command)
    code: int = importlib.import_module("whet.cli.main").main([*command, *(sys.argv[1:] if argv is None else argv)])
    return code


def _advice(name: str) -> str:
    instead = instead_of(name)
    if instead is not None:
        return f" Instead: {instead}."
    if not name.startswith("verifiers.") or any(part.startswith("_") for part in name.split(".")):
        return ""
    return f" verifiers {CONTRACT_VERSION}, which it replaces, has none either: this needs another release."


def _contract_is_installed() -> bool:
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        return importlib.util.find_spec("verifiers") is not None  # a checkout on the path: its owner's choice
    return version.startswith("0.1.")


_replaced: dict[tuple[str, str], Any] = {}  # by module and name, what was there first


class _StandIn(ModuleType):
    """A module whose names are whet's."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            note_importer(sys._getframe(1))
        if f"{self.__name__}.{name}" in _MODULES:
            return importlib.import_module(f"{self.__name__}.{name}")
        if not name.startswith("__"):
            for source in _sources(self.__name__, name):
                module, _, attribute = source.partition(":")
                value = getattr(importlib.import_module(module), attribute, _MISSING)
                if value is not _MISSING:
                    return value
        raise AttributeError(
            f"whet replaces {self.__name__} here and has no '{name}'.{_advice(f'{self.__name__}.{name}')}"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Replace the name in whet's module, where it has an effect."""
        source = None if name.startswith("__") or isinstance(value, _StandIn) else self._source_of(name)
        if source is None:
            super().__setattr__(name, value)
            return
        module, attribute = source
        _replaced.setdefault((module.__name__, attribute), getattr(module, attribute))
        setattr(module, attribute, value)

    def __delattr__(self, name: str) -> None:
        """Undo a replacement, as patching tools do for names that are not in the module's dict."""
        source = None if name in vars(self) else self._source_of(name)
        key = None if source is None else (source[0].__name__, source[1])
        if source is None or key not in _replaced:
            super().__delattr__(name)
            return
        setattr(*source, _replaced.pop(key))

    def _source_of(self, name: str) -> tuple[ModuleType, str] | None:
        """The module of whet that defines a name of this stand-in, and the name there."""
        for source in _sources(self.__name__, name):
            module, _, attribute = source.partition(":")
            imported = importlib.import_module(module)
            if attribute in vars(imported):
                return imported, attribute
        return None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_names(self.__name__)})


_MISSING = object()


def _sources(module: str, name: str) -> list[str]:
    """`module:attribute` for each possible definition of a stand-in's name."""
    if (module, name) in _RENAMED:
        return [_RENAMED[module, name]]
    sources = []
    for location in _MODULES[module]:
        target, _, only = location.partition(":")
        if not only or name in only.split(","):
            sources.append(f"{target}:{name}")
    return sources


def _names(module: str) -> list[str]:
    """The names of `from module import *`."""
    names = [name for owner, name in _RENAMED if owner == module] + ["main"] * (module in _SCRIPTS)
    for location in _MODULES[module]:
        target, _, only = location.partition(":")
        imported = importlib.import_module(target)
        names += only.split(",") if only else getattr(imported, "__all__", None) or list(vars(imported))
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _MODULES:
            if not fullname.startswith("verifiers."):
                return None
            raise ModuleNotFoundError(
                f"whet replaces verifiers here and has no module {fullname}.{_advice(fullname)}", name=fullname
            )
        package = fullname.partition(".")[0]
        if package == _HOSTED_SANDBOXES and PathFinder.find_spec(package) is not None:
            return None
        is_package = any(name.startswith(f"{fullname}.") for name in _MODULES)
        return ModuleSpec(fullname, self, origin="whet", is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name, f"whet, instead of {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        if name == "verifiers":
            vars(module)["__version__"] = CONTRACT_VERSION
        if name in _SCRIPTS:
            vars(module)["main"] = functools.partial(_run_script, name)
        vars(module)["__all__"] = _names(name)
