"""Logs of all nodes, sent to one of them and written there; see docs/log-funnel.md."""
