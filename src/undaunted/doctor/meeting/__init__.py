"""The doctors of several nodes meet, and compare what they have found."""
