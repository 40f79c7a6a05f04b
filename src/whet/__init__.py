"""whet: sharpen language models on environments.

The public names are imported when they are first used, so that `import whet` is quick and loads no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
"""The version of whet that is installed."""

_EXPORTS = {
    "whet.envs.environment": ("Environment",),
    "whet.envs.singleturn_env": ("SingleTurnEnv",),
    "whet.envs.multiturn_env": ("MultiTurnEnv",),
    "whet.envs.tool_env": ("ToolEnv",),
    "whet.envs.stateful_tool_env": ("StatefulToolEnv",),
    "whet.envs.sandbox_env": ("SandboxEnv",),
    "whet.envs.python_env": ("PythonEnv",),
    "whet.envs.mcp_env": ("MCPEnv",),
    "whet.envs.env_group": ("EnvGroup",),
    "whet.envs.loading": ("load_environment",),
    "whet.integrations.gym_env": ("GymEnv",),
    "whet.integrations.reasoning_gym_env": ("ReasoningGymEnv",),
    "whet.integrations.textarena_env": ("TextArenaEnv",),
    "whet.envs.data.example_datasets": ("load_example_dataset",),
    "whet.tasksets.env": ("Env",),
    "whet.tasksets.taskset": ("Taskset",),
    "whet.tasksets.harness": ("Harness",),
    "whet.tasksets.task": ("Task",),
    "whet.tasksets.state": ("TaskState",),
    "whet.tasksets.programs.session": ("Session",),
    "whet.tasksets.tools.toolset": ("Toolset", "MCPTool"),
    "whet.tasksets.part": ("User",),
    "whet.tasksets.config": (
        "EnvConfig",
        "TasksetConfig",
        "HarnessConfig",
        "ToolsetConfig",
        "UserConfig",
        "MCPToolConfig",
        "SandboxConfig",
    ),
    "whet.rubrics.rubric": ("Rubric",),
    "whet.rubrics.rubric_group": ("RubricGroup",),
    "whet.rubrics.math_rubric": ("MathRubric",),
    "whet.rubrics.judge_rubric": ("JudgeRubric",),
    "whet.parsers.parser": ("Parser",),
    "whet.parsers.think_parser": ("ThinkParser", "MaybeThinkParser"),
    "whet.parsers.xml_parser": ("XMLParser",),
    "whet.parsers.answers": ("extract_boxed_answer", "extract_hash_answer"),
    "whet.decorators": ("stop", "cleanup", "teardown", "setup", "update", "metric", "reward", "advantage"),
    "whet.clients.client": ("Client",),
    "whet.clients.config": ("ClientConfig", "EndpointConfig"),
    "whet.clients.providers.openai_chat": ("OpenAIChatCompletionsClient",),
    "whet.clients.providers.openai_completions": ("OpenAICompletionsClient",),
    "whet.clients.providers.openai_responses": ("OpenAIResponsesClient",),
    "whet.clients.providers.anthropic_messages": ("AnthropicMessagesClient",),
    "whet.clients.replicas": ("ReplicaClient",),
    "whet.clients.scripted": ("ScriptedClient",),
    "whet.compat.alias": ("install_verifiers_alias",),
    "whet.system.env_files": ("ensure_keys",),
    "whet.system.logs": ("log_level", "print_prompt_completions_sample", "setup_logging"),
    "whet.errors": (
        "Error",
        "ModelError",
        "InvalidModelResponseError",
        "EmptyModelResponseError",
        "OverlongPromptError",
        "ToolError",
        "ToolParseError",
        "ToolCallError",
        "InfraError",
        "SandboxError",
        "TunnelError",
        "RewardError",
        "EnvError",
        "WhetError",
        "MissingKeyError",
    ),
    "whet.types": (
        "Message",
        "Messages",
        "SystemMessage",
        "UserMessage",
        "AssistantMessage",
        "ToolMessage",
        "Tool",
        "ToolCall",
        "Response",
        "ResponseMessage",
        "ResponseTokens",
        "Usage",
        "State",
        "RolloutInput",
        "RolloutOutput",
        "RolloutTiming",
        "TrajectoryStep",
        "TrajectoryStepTokens",
        "TokenUsage",
        "GenerateOutputs",
        "GenerateMetadata",
        "SamplingArgs",
        "RewardFunc",
        "Info",
        "DatasetBuilder",
    ),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        import difflib

        near = difflib.get_close_matches(name, _MODULE_OF, n=1)
        hint = f". Did you mean '{near[0]}'?" if near else ""
        raise AttributeError(f"whet {__version__} has no name '{name}'{hint}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


if TYPE_CHECKING:
    from whet.clients.client import Client as Client
    from whet.clients.config import ClientConfig as ClientConfig
    from whet.clients.config import EndpointConfig as EndpointConfig
    from whet.clients.providers.anthropic_messages import AnthropicMessagesClient as AnthropicMessagesClient
    from whet.clients.providers.openai_chat import OpenAIChatCompletionsClient as OpenAIChatCompletionsClient
    from whet.clients.providers.openai_completions import OpenAICompletionsClient as OpenAICompletionsClient
    from whet.clients.providers.openai_responses import OpenAIResponsesClient as OpenAIResponsesClient
    from whet.clients.replicas import ReplicaClient as ReplicaClient
    from whet.clients.scripted import ScriptedClient as ScriptedClient
    from whet.compat.alias import install_verifiers_alias as install_verifiers_alias
    from whet.decorators import advantage as advantage
    from whet.decorators import cleanup as cleanup
    from whet.decorators import metric as metric
    from whet.decorators import reward as reward
    from whet.decorators import setup as setup
    from whet.decorators import stop as stop
    from whet.decorators import teardown as teardown
    from whet.decorators import update as update
    from whet.envs.data.example_datasets import load_example_dataset as load_example_dataset
    from whet.envs.env_group import EnvGroup as EnvGroup
    from whet.envs.environment import Environment as Environment
    from whet.envs.loading import load_environment as load_environment
    from whet.envs.mcp_env import MCPEnv as MCPEnv
    from whet.envs.multiturn_env import MultiTurnEnv as MultiTurnEnv
    from whet.envs.python_env import PythonEnv as PythonEnv
    from whet.envs.sandbox_env import SandboxEnv as SandboxEnv
    from whet.envs.singleturn_env import SingleTurnEnv as SingleTurnEnv
    from whet.envs.stateful_tool_env import StatefulToolEnv as StatefulToolEnv
    from whet.envs.tool_env import ToolEnv as ToolEnv
    from whet.errors import EmptyModelResponseError as EmptyModelResponseError
    from whet.errors import EnvError as EnvError
    from whet.errors import Error as Error
    from whet.errors import InfraError as InfraError
    from whet.errors import InvalidModelResponseError as InvalidModelResponseError
    from whet.errors import MissingKeyError as MissingKeyError
    from whet.errors import ModelError as ModelError
    from whet.errors import OverlongPromptError as OverlongPromptError
    from whet.errors import RewardError as RewardError
    from whet.errors import SandboxError as SandboxError
    from whet.errors import ToolCallError as ToolCallError
    from whet.errors import ToolError as ToolError
    from whet.errors import ToolParseError as ToolParseError
    from whet.errors import TunnelError as TunnelError
    from whet.errors import WhetError as WhetError
    from whet.integrations.gym_env import GymEnv as GymEnv
    from whet.integrations.reasoning_gym_env import ReasoningGymEnv as ReasoningGymEnv
    from whet.integrations.textarena_env import TextArenaEnv as TextArenaEnv
    from whet.parsers.answers import extract_boxed_answer as extract_boxed_answer
    from whet.parsers.answers import extract_hash_answer as extract_hash_answer
    from whet.parsers.parser import Parser as Parser
    from whet.parsers.think_parser import MaybeThinkParser as MaybeThinkParser
    from whet.parsers.think_parser import ThinkParser as ThinkParser
    from whet.parsers.xml_parser import XMLParser as XMLParser
    from whet.rubrics.judge_rubric import JudgeRubric as JudgeRubric
    from whet.rubrics.math_rubric import MathRubric as MathRubric
    from whet.rubrics.rubric import Rubric as Rubric
    from whet.rubrics.rubric_group import RubricGroup as RubricGroup
    from whet.system.env_files import ensure_keys as ensure_keys
    from whet.system.logs import log_level as log_level
    from whet.system.logs import print_prompt_completions_sample as print_prompt_completions_sample
    from whet.system.logs import setup_logging as setup_logging
    from whet.tasksets.config import EnvConfig as EnvConfig
    from whet.tasksets.config import HarnessConfig as HarnessConfig
    from whet.tasksets.config import MCPToolConfig as MCPToolConfig
    from whet.tasksets.config import SandboxConfig as SandboxConfig
    from whet.tasksets.config import TasksetConfig as TasksetConfig
    from whet.tasksets.config import ToolsetConfig as ToolsetConfig
    from whet.tasksets.config import UserConfig as UserConfig
    from whet.tasksets.env import Env as Env
    from whet.tasksets.harness import Harness as Harness
    from whet.tasksets.part import User as User
    from whet.tasksets.programs.session import Session as Session
    from whet.tasksets.state import TaskState as TaskState
    from whet.tasksets.task import Task as Task
    from whet.tasksets.taskset import Taskset as Taskset
    from whet.tasksets.tools.toolset import MCPTool as MCPTool
    from whet.tasksets.tools.toolset import Toolset as Toolset
    from whet.types import AssistantMessage as AssistantMessage
    from whet.types import DatasetBuilder as DatasetBuilder
    from whet.types import GenerateMetadata as GenerateMetadata
    from whet.types import GenerateOutputs as GenerateOutputs
    from whet.types import Info as Info
    from whet.types import Message as Message
    from whet.types import Messages as Messages
    from whet.types import Response as Response
    from whet.types import ResponseMessage as ResponseMessage
    from whet.types import ResponseTokens as ResponseTokens
    from whet.types import RewardFunc as RewardFunc
    from whet.types import RolloutInput as RolloutInput
    from whet.types import RolloutOutput as RolloutOutput
    from whet.types import RolloutTiming as RolloutTiming
    from whet.types import SamplingArgs as SamplingArgs
    from whet.types import State as State
    from whet.types import SystemMessage as SystemMessage
    from whet.types import TokenUsage as TokenUsage
    from whet.types import Tool as Tool
    from whet.types import ToolCall as ToolCall
    from whet.types import ToolMessage as ToolMessage
    from whet.types import TrajectoryStep as TrajectoryStep
    from whet.types import TrajectoryStepTokens as TrajectoryStepTokens
    from whet.types import Usage as Usage
    from whet.types import UserMessage as UserMessage
