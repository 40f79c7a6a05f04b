"""Training as a service: a queue of runs, runners, and deployments. docs/design/service.md."""
