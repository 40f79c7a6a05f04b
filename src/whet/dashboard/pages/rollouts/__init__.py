"""Pages of rollouts: the list, one of them with its tokens, a group side by side, and a step."""
