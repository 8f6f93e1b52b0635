"""Whoever repairs: a command, a person, a script of the problem, or nobody. What each gets, and how it ends."""
