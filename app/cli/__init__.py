"""The command `hookcore`, a file for each family of its sub-commands. It knows no torch itself."""

from .command import main, make_parser

__all__ = ["main", "make_parser"]
