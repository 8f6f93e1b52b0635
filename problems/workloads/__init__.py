"""Services that problems run on: each a package, deployed on the nodes of a lab as an operator would run it."""
