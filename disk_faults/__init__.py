"""Faults of disks on live device-mapper tables. One file a fault, found by looking."""
