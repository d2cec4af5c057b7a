"""Data: files in, a federation's tensors out."""

from pa3dfl.data.federated import FederatedData, federate
from pa3dfl.data.partition import KINDS, Split, Splits, label_counts, partition, split
from pa3dfl.data.sources import NAMES, Arrays, available, load

__all__ = [
    "KINDS",
    "NAMES",
    "Arrays",
    "FederatedData",
    "Split",
    "Splits",
    "available",
    "federate",
    "label_counts",
    "load",
    "partition",
    "split",
]
