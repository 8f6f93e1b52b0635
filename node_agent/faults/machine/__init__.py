"""Faults of the whole machine: its clock, its settings, its kernel."""
