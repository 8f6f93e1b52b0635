"""The privileged agent: one on each node, the only thing that changes a kernel."""
