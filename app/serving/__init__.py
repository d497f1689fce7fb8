"""Serving: uvicorn with deadlines, in a process or in a thread of the trainer."""
