"""Who leads, and what survives: pure."""
