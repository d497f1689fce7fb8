"""Tests of hookcore and its server."""
