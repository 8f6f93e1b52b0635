"""Programs that run as helper processes of an injection and serve its counters. Each is a script of its own."""
