"""What saves, finds and loads the shards of a rank."""
