"""Problems of the network between the nodes."""
