"""Tools for authors of environments: a package template, a review, an installation."""
