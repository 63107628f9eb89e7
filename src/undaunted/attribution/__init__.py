"""From evidence to verdict: whose fault it was, and what it was doing."""
