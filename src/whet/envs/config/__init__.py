"""What a caller gives an environment: arguments, sections of a config file, texts."""
