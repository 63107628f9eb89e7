"""A node that is fit for the next round."""
