"""Who saves and loads local checkpoints."""
