"""The record of a run: typed events, their writer and reader, and the report made from them."""
