"""Arithmetic on tensors: kernels, and the memory that they write to. Knows no modules and registers no hooks."""
