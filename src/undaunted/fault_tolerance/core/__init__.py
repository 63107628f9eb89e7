"""The node agent's life cycle as a pure state machine: events in, commands out."""
