"""Finds out facts; decides nothing. What may hang has a deadline, what may crash a process."""
