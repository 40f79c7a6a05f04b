"""The error hierarchy.

Two families, by cause:

* `WhetError`: a mistake in what the user gave (config, path, dataset, package). The command line prints
  its message without a traceback and exits with 2. Each message says what was wrong, where, and what to do.
* `Error`: something failed *inside one rollout*. It is stored in `state["error"]`, the rollout counts as errored,
  and the run continues. The names are those of the `verifiers` 0.1 contract, so environments can catch and raise them.
"""


class WhetError(Exception):
    """A mistake the user can fix: what was wrong, where, and what to do about it."""


class ConfigError(WhetError, ValueError):  # a ValueError in the 0.1 contract, and caught as one
    """A config file, a command-line override or an argument does not make sense."""


class EnvironmentLoadError(WhetError):
    """An environment is not installed, fails on import, or refuses its arguments."""


class DatasetError(WhetError, ValueError):
    """A dataset is missing, empty, or has a row that is not a task."""


class ModelLoadError(WhetError):
    """A model directory is missing, torn, or of an architecture this engine does not run."""


class MissingExtraError(WhetError):
    """A feature needs an optional dependency that is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the '{extra}' extra. Install it with: pip install 'whet[{extra}]'")
        self.extra = extra


class MissingKeyError(WhetError, ValueError):  # a ValueError in the 0.1 contract, and caught as one
    """Environment variables that an environment requires with `ensure_keys` are not set: `missing`, or `keys`."""

    def __init__(self, missing: list[str]) -> None:
        names = ", ".join(missing)
        super().__init__(
            f"missing environment variables: {names}. Set them in the shell or in a file named by env_file."
        )
        self.missing = self.keys = missing


class EndpointError(WhetError):
    """A model endpoint refuses all requests: a missing or wrong key, no permission, no quota left."""


class EndpointUnreachableError(EndpointError):
    """A model endpoint was never reachable: the address is wrong, or the server has not been started."""


class EngineError(WhetError):
    """A server of an engine does not start, has ended, or is none that can be used."""


class SandboxUnavailableError(WhetError):
    """A kind of sandbox cannot run on this machine; the message has the command that fixes it."""


class RunError(WhetError):
    """A run directory or a checkpoint cannot be used in the requested way."""


class TrainingError(WhetError):
    """Training had to stop (a loss that is not finite, no disk left); the last good checkpoint is kept."""


class LearnerLostError(TrainingError):
    """Processes of a learner have ended, or stand still; started again, they continue from a checkpoint."""


class GepaError(WhetError):
    """A prompt search cannot begin or had to stop; finished work is kept, and `--resume` continues from there."""


class Error(Exception):
    """Base class of everything that makes one rollout errored while the run continues."""


class ModelError(Error):
    """A model endpoint or engine failed to answer."""

    refusal = ""
    """The words of an endpoint that refused the request."""


class RequestRefusedError(ModelError):
    """A request that no engine could answer: a value out of range, or a conversation that the chat template refuses."""


class EndpointDownError(ModelError):
    """A model endpoint could not be reached, was too busy, or failed; another replica may answer."""


class ContentFilterError(ModelError):
    """The provider's content filter kept the model from answering; asking again would not change that."""


class InvalidModelResponseError(ModelError):
    """A model answered with something that is not a response."""


class EmptyModelResponseError(InvalidModelResponseError):
    """A model answered with neither text nor tool calls."""


class OverlongPromptError(Error):
    """The prompt, or prompt and requested tokens together, exceed the model's context."""


class RewardError(Error):
    """A reward function raised, or returned something that is not a finite number of at most 1e30."""


class EnvError(Error):
    """The environment's own code raised during a rollout: `env_response`, a hook, a stop condition."""


class ToolError(Error):
    """Base class of tool failures."""


class ToolParseError(ToolError):
    """A tool call could not be parsed."""


class ToolCallError(ToolError):
    """A tool raised while it was being called."""


class InfraError(Error):
    """Infrastructure around a rollout failed, not the model and not the environment."""


class SandboxError(InfraError):
    """A sandbox could not be created, or its host failed."""


class SandboxFileError(SandboxError):
    """A file did not go into a sandbox or out of it because of what its code did: a full disk, no such file.

    The code's own failure, so not one that an attempt is repeated for: the rollout ends and is scored, and a reward
    function that cannot compute its value then counts 0.
    """


class TunnelError(InfraError):
    """A tunnel to a rollout's endpoint died."""


class RolloutTimeoutError(Error):
    """A rollout took longer than it may take."""


class WorkerDiedError(InfraError):
    """The worker process of a rollout died with it, and did so again whenever the rollout was tried once more."""
