"""Faults of memory and of what else a machine runs out of."""
