"""When: steps, found by the clock and selected by the cadence."""
