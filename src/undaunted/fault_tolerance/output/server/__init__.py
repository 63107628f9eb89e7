"""Logs of all nodes, sent to one of them and written there; see docs/logs.md."""
