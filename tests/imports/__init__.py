"""Whether packages may be imported ahead of the ranks: the table of `known_imports`, checked."""
