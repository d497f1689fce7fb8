"""What hookcore costs, measured. Run one with `python -m benchmarks.<name>`; nothing here is a test."""
