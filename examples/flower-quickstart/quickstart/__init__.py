"""Handwritten digits in a Flower federation."""
