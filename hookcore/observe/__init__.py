"""Arithmetic on tensors: kernels, and the memory that they add to. It knows no module and registers no hook."""
