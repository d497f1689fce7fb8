"""Runs in ClickHouse: its tables, the blocks that are inserted, and what is read back."""
