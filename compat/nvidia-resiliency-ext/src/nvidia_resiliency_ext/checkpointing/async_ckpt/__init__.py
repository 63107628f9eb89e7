# Made from names/*.yaml by `make generated`.
"""Asynchronous checkpoints."""
