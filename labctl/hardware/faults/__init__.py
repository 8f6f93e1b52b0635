"""Hardware faults, one a file, found by looking (labctl.hardware.catalog)."""
