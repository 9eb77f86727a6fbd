"""The round loop; its state; how it is saved and restored."""
