"""A real training for the dashboard: a small network that learns to read digits, with five optional problems.

It is neither a benchmark nor an example of how to train; `hookcore demo` runs it.
"""

from hookcore.commands.demo.training import Demo, train

__all__ = ["Demo", "train"]
