"""Checks the place before training starts: `undaunted doctor`."""
