"""Runs in a browser: live, read-only pages of what is on disk, for a laptop and for the service.

library.py     which runs there are and which of them a viewer may see; the service implements it for its database
folders.py     the library of plain directories
data/          what a page or a program gets to know of a run, as JSON-able values, with caches that are bounded
routes.py      the HTTP routes of that data, once below /api/v1 and once below /data
pages/         the pages, one file for each subject; templates/ are theirs, what reports have too is in display/page
app.py         joins routes and pages for any library; serve.py: `whet dashboard`
"""
