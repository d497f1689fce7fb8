"""What the pages show, computed from a run: no requests, no templates."""
