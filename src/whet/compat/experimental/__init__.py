"""Agent environments of `verifiers.envs.experimental` 0.1.14, on sandboxes of this machine."""
