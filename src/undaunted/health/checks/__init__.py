"""One module per check of a node, each with a function ``checks`` that makes those needed."""
