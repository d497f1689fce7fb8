"""The command `hookcore`, with one file per group of sub-commands. It doesn't import torch itself."""

from .command import main, make_parser

__all__ = ["main", "make_parser"]
