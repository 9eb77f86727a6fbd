"""`python -m celm` runs the `celm` command."""

from celm.cli import main

if __name__ == "__main__":
    main()
