"""Figures and HTML, from results only."""
