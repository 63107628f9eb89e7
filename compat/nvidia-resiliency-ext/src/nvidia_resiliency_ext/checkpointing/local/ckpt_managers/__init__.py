# Made from names/*.yaml by `make generated`.
"""What saves, finds and loads the shards of a rank."""
