"""Functions that are restarted in their processes."""
