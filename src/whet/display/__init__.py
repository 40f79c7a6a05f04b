"""Output shared by the rooms above: parts of HTML pages, charts, a rollout in a panel, live views in a terminal.

Text of a model or an environment stays text: it is escaped in a page and in a terminal.
"""
