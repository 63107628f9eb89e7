# Made from names/*.yaml by `make generated`.
"""Managers that save, find and load the shards of a rank."""
