"""TailorFL: the method, and the importance of channels to a client."""

from pa3dfl.methods.tailorfl.method import TailorFL

__all__ = ["TailorFL"]
