"""Makes what a rank cannot do to itself, and keeps the launcher of a run."""
