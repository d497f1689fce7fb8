"""The pages in a real browser: a real server, fed by real trainings. Each test asserts that no page told an error."""
