"""Who failed, and why."""
