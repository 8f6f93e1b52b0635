"""How long a network fault takes to plant and to take back, beside typing `tc` over SSH."""
