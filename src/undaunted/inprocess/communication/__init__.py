"""How collectives of each backend are aborted."""
