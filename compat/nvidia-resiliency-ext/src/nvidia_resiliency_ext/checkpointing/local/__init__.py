"""Checkpoints on the disks of the nodes."""
