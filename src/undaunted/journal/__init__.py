"""What happened: typed events, their writer and reader, and the report made from them."""
