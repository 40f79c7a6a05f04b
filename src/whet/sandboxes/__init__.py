"""Run code that nobody trusts. What a sandbox is: `protocol`; which there are: `registry`."""
