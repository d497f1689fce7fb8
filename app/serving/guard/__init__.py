"""The guard: who asks, what they may do, what is let through, and when the server is idle."""
