"""What is called: plans of modules, their coverage, hooks, and the dispatcher."""
