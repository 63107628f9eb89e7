"""Asynchronous checkpoints."""
