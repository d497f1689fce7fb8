"""The server: thin routes and pages over a store. It knows no torch, and hookcore never imports it."""
