"""Problems of processes: neighbours, limits, system calls that are refused."""
