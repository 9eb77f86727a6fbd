"""What every room may use: errors, files, randomness, names."""
