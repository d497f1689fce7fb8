"""The pages in a real browser: a real server, fed by real trainings. Each test checks that no page reported errors."""
