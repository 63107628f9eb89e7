"""Recordings of collectives (torch's Flight Recorder): who keeps all others waiting."""
