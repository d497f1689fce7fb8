"""The contents of pages, computed from a run: no requests, no templates."""
