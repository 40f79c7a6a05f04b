"""The hub: environment packages, shared on a server that one hosts (docs/design/hub.md)."""
