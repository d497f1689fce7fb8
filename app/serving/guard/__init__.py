"""The guard: authentication, authorization, request checks, and whether the server is idle."""
