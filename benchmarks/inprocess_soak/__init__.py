"""In-process restart under random faults, with real processes."""
