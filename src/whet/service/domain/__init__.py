"""What the service decides and changes: the queue, who is next, what fits where, caps, secrets."""
