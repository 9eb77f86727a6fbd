"""A simulated federation: built from settings, run one round at a time with the server step."""
