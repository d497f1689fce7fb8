"""The runs of a ClickHouse in the list of a server: listed, followed, loaded, edited, and kept for a time."""
