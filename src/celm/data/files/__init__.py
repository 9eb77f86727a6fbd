"""Where dataset files are, and how they are read: every damaged file is one line that names it."""
