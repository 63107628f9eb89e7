"""All ranks agree, or all get the same error, within a deadline."""
