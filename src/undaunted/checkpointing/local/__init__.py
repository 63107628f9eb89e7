"""Checkpoints on the node's own disk, replicated to peers."""
