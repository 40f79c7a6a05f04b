"""The process that serves deployments: models in memory, rows reconciled with them, access, usage."""
