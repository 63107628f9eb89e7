"""Logs of launchers and ranks."""
