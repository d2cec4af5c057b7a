"""Pa3dFL: the method, its decomposition, its general parameters, and its ablations."""

from pa3dfl.methods.pa3dfl.method import Pa3dFL

__all__ = ["Pa3dFL"]
