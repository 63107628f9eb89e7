"""The choice of the leader, and all that survives it: pure."""
