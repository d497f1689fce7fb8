"""How it leaves: frames, the recorder's thread, and commands that come in."""
