"""Problems whose trigger is over and whose bad state stays."""
