"""Pages for people, in the layout of the dashboard."""
