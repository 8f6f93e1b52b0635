"""Problems of settings."""
