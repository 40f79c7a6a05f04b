"""Where rollouts of evaluations are run: in this process, or in several of their own."""
