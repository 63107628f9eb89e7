"""A round: its processes' places, and what is left of it afterwards."""
