"""Arenas outlive their trainer: the node agent keeps them on a shelf."""
