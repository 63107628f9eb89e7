# Made from names/*.yaml by `make generated`.
"""Checkpoints on the disks of the nodes."""
