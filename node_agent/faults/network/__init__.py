"""Faults of the network: traffic, links, names, tables of the kernel."""
