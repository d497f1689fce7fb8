"""The ways that a run's frames take from the recorder: to a store, to a server, to other tools. Imports no torch."""
