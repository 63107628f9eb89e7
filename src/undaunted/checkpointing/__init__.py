"""Checkpoints that are asynchronous, never torn and never lost."""
