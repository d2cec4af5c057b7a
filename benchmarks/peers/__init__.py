"""Other simulators, one short file each, run by the Python of their own environment."""
