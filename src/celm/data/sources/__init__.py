"""The built-in datasets, one per file."""
