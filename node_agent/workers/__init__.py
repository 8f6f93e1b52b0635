"""Processes of an injection's own, and what those share with the agent. Only the standard library."""
