"""Running problems: the words of a verdict, the record of an episode, and what many of them add up to."""
