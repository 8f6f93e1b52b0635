"""Oracles: what decides whether a service is well, whether a repair lasts, and what else was changed."""
