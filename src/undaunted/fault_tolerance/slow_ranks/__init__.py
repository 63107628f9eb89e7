"""Which ranks are slow: what each takes by itself in a step, beside its peers; of the leader."""
