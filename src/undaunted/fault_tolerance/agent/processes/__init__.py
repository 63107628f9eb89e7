"""Processes of ranks: started, told to end, replaced."""
