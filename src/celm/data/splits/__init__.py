"""The built-in splits, one per file; `helpers` contains their shared functions."""
