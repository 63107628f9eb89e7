"""Checks of nodes and devices."""
