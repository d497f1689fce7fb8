"""Callbacks for other frameworks: `hookcore.frameworks.lightning`, `.transformers`, `.accelerate`, `.ignite`.

Each file imports its framework, so importing hookcore imports none of them. There is no training loop here.
"""
