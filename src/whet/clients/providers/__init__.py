"""Clients over the providers' own packages (`openai`, `anthropic`), their connections and their errors."""
