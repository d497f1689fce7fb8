"""What pages and API compute from runs: comparisons, costs, attention rollout, tensors as pictures, module facts."""
