"""Virtual time, a seeded network and processes that crash, pause and are slow: the engine only."""
