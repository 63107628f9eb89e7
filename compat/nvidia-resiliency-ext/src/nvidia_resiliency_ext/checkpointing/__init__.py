# Made from names/*.yaml by `make generated`.
"""Checkpoints, under the names of NVRx."""
