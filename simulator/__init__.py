"""Jobs in virtual time, under faults, and what must hold; see docs/design/simulator.md."""
