"""How it leaves: frames, and the thread that sends them."""
