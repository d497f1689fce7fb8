"""REST: queries about the runs, and commands to their trainers. Thin and stateless; the runs are in `app.state`."""
