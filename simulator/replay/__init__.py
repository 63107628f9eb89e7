"""The simulator's invariants over the journals of a real job."""
