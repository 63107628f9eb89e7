# Made from names/*.yaml by `make generated`.
"""Copies of shards on other nodes."""
