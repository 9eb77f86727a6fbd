"""Grids of runs and the tables they fill, with the paper's figures beside ours."""
