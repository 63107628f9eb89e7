"""What ranks do, as events, and how far they are."""
