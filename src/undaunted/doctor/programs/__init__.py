"""Programs that are run by path, as what they ask may hang or crash."""
