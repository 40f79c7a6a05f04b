"""Runs to read."""

from tests.runs_on_disk import evaluation, failed, rollout  # noqa: F401
