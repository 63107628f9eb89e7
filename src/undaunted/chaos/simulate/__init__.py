"""The cores of coordinator and agent in virtual time, under faults; see docs/simulation.md."""
