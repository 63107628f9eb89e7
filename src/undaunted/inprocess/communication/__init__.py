"""Aborting collectives of each backend, and waits in a store."""
