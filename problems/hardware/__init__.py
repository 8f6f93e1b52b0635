"""Problems of whole machines."""
