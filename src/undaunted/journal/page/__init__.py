"""The report as one HTML file: a timeline by node and rank, and tables."""
