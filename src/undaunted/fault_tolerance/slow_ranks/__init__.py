"""Slow ranks: the time that each takes by itself in a step, beside its peers; of the leader."""
