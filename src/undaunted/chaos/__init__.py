"""Is it true? Plans of faults, and what must hold while they happen."""
