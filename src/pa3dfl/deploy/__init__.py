"""A federation on real machines: Flower's SuperLink and SuperNodes, set up and started by four commands."""
