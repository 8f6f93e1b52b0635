"""Problems of memory."""
