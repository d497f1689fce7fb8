"""Training scripts of many kinds. They don't use hookcore; each saves its weights to its first argument."""
