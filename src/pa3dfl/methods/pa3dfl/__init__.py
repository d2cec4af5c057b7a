"""Pa3dFL: the method, its decomposition of layers, the parameters that all clients share, and the ablations."""

from pa3dfl.methods.pa3dfl.method import Pa3dFL

__all__ = ["Pa3dFL"]
