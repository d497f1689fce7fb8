"""What is measured: statistics, snapshots, flow, probes, and the look at every step."""
