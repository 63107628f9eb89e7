"""Saving and loading a checkpoint, against what a user would use instead."""
