"""One screen about a run, live."""
