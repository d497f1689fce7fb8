"""The pages in a real browser, with a real server and real trainings. Each test checks that no page reported errors."""
