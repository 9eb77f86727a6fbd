"""Engines train and evaluate clients: in this process, in worker processes or on Ray. They do not change results."""
