"""Something real to look at: a small network that learns to read digits, and five ways in which a training goes wrong.

Not a benchmark and not an example of how to train; `hookcore demo` runs it.
"""

from hookcore.demo.training import Demo, train

__all__ = ["Demo", "train"]
