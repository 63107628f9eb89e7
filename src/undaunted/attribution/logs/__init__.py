"""A failure by its log files: rules, a scanner, and a comparison with a good round."""
