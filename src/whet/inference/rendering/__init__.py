"""Between messages and token ids."""
