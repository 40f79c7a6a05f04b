"""Supervised fine-tuning: imitate conversations, with the learner of reinforcement learning. `run.py` is the way in."""
