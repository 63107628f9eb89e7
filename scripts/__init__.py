"""Set-up, and pages of the documentation that are made from code."""
