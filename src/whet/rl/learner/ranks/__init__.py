"""A learner that is divided among processes: ranks that each hold a part of it (FSDP2)."""
