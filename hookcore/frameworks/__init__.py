"""Callbacks for other frameworks: `hookcore.frameworks.lightning`, `.transformers`, `.accelerate`, `.ignite`.

Each file imports its framework, so that nobody imports one by importing hookcore. There is no training loop here.
"""
