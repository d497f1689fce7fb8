"""Training scripts of many kinds. None knows of hookcore; each saves its weights to its first argument."""
