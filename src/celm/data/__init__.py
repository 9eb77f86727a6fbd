"""Datasets (where the files are, how they are checked) and splits (one family per file)."""
