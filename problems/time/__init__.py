"""Problems of clocks."""
