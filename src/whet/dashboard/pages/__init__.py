"""The pages: one file for each subject, with a `router`; PAGE_ROUTERS are those of every dashboard."""

from whet.dashboard.pages import compare, run, runs

PAGE_ROUTERS = (runs.router, run.router, compare.router)
