"""Managers that save and load local checkpoints."""
