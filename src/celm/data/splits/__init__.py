"""Ways to deal a dataset to clients: one family per file."""
