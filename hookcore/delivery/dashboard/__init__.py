"""This user's dashboard process: found, started, announced to, and trusted. Imports no torch."""
