"""The service's own pages, on the dashboard's base: actions on runs, deployments, accounts, usage, the audit log.

Each form does what a route of the API does, by that route's function, with the rights of the page's session.
"""

from whet.service.pages import accounts, deployments, owners, runs, site

PAGES = (runs.router, deployments.router, owners.router, accounts.router, site.router)
