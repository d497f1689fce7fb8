"""The server: thin routes and pages over a store. It imports no torch, and hookcore never imports it."""
