"""Saved checkpoints in, a contribution report out: no training, no data, and no trust in the files."""
