"""The HTTP interfaces of OpenAI and Anthropic: pure functions between requests, answers and `wire.py`."""
