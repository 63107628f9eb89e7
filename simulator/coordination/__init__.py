"""The cores of coordinator and agent in virtual time (docs/design/simulator.md)."""
