"""Checkpoints, under the names of NVRx."""
