"""`python -m celm` is `celm`."""

from celm.cli import main

if __name__ == "__main__":
    main()
