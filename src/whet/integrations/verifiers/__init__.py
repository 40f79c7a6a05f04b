"""Helpers of the `verifiers` 0.1 contract that packages import and whet itself has no use for; see `whet.compat.alias`."""
