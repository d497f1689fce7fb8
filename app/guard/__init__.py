"""The guard: who asks, what they may do, and what is let through."""
