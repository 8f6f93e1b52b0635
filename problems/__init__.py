"""Incident problems: real services that break for real reasons."""
