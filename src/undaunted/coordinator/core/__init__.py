"""The job policy as a pure state machine: events in, commands out."""
