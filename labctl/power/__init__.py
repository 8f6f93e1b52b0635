"""Switching the power of machines: the lab's own virtual ones, and real ones by their management controller."""
