"""The settings of an environment: arguments, sections of a config file, prompt texts."""
