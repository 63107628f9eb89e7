"""Copies of shards on other nodes."""
