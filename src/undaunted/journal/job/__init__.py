"""A job from the journals of all its nodes and launches: one time axis, goodput, failures, cost."""
