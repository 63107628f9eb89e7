"""Jobs that are restarted inside their processes, in virtual time: faults and invariants."""
