"""What is known: models, parameters, ranks, and facts."""
