"""Schemas of all files that are written and read again, and the reading and checking of folders."""
