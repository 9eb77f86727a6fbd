"""The command line: parse, call, print. Commands import heavy packages only when they run."""

from celm.cli.app import main

__all__ = ["main"]
