"""A collector takes batches from trainers, writes them to disk, and sends them on when the server is there."""
