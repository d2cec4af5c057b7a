"""TailorFL: the method, and how important channels are to a client."""

from pa3dfl.methods.tailorfl.method import TailorFL

__all__ = ["TailorFL"]
