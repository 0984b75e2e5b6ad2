"""The `dualpace` command: the only part that prints and sets exit codes.

A file holds a command, or two that belong together. Commands import what they need when they run, so that
`dualpace lint` starts in a fraction of a second.
"""

from dualpace.cli.entry import app, main

__all__ = ["app", "main"]
