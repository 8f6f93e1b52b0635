"""The flight-booking service: what runs on the nodes. Nothing in it knows of the lab."""
