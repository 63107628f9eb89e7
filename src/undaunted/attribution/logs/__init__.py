"""What log files say about a failure: rules, a scanner, and a comparison with a good round."""
