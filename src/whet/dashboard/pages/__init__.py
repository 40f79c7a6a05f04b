"""The pages: one file for each subject, with a `router`; PAGE_ROUTERS are those of every dashboard."""

from whet.dashboard.pages import compare, reports, run, runs, written
from whet.dashboard.pages.rollouts import group, listing, rollout, step

PAGE_ROUTERS = (
    runs.router,
    run.router,
    compare.router,
    listing.router,
    rollout.router,
    group.router,
    step.router,
    written.router,
    reports.router,
)
