"""A federation of many nodes: clients need NumPy, the server PyTorch and celm."""
