"""The command line: one file a command."""

from specjax.cli.app import app, main

__all__ = ["app", "main"]
