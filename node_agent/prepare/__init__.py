"""Putting a disk under a linear device-mapper table, so that disk faults have a table to be swapped into.

Nothing is copied: the device shows the same bytes at the same places. The disk, or a file made to be one, is
recorded under the agent's state directory before anything is done; a unit of systemd brings all up at boot.
"""
