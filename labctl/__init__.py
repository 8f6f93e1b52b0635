"""The control side: commands nodes, runs labs. Needs no root."""
