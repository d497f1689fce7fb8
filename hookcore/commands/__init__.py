"""What `hookcore run`, `hookcore doctor`, and `hookcore demo` do in the training's process."""
