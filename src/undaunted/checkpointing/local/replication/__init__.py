"""Copies of shards at peers: who has which, and how they get there."""
