"""Runs in ClickHouse: tables, inserting, and reading."""
