"""whet: sharpen language models on environments."""

__version__ = "0.1.0"
