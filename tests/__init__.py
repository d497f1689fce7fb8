"""The tests of hookcore and of its server."""
