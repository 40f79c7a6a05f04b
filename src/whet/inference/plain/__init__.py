"""The way through transformers' own forward pass, for models of families that whet's own does not know."""
