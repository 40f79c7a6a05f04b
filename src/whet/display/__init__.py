"""What people look at, shared by the rooms that show it: parts of HTML pages, charts, a rollout in a panel.

Everything from a model or an environment enters as text and stays text: escaped in a page, made harmless in a terminal.
"""
