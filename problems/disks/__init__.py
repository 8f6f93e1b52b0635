"""Problems of the disks below the database."""
