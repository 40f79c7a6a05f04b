"""Helpers of the `verifiers` 0.1 contract that packages import and whet itself does not use.

`whet.compat.alias` serves them under the names of `verifiers`.
"""
