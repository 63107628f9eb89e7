"""The protocol of in-process restart: events in, commands out."""
