"""Data: files in, a federation's tensors out."""

from pa3dfl.data.federated import FederatedData, federate, histogram, mean_and_std, scaled
from pa3dfl.data.partition import KINDS, Split, Splits, label_counts, partition, split, split_one
from pa3dfl.data.sources import NAMES, Arrays, available, load, load_own

__all__ = [
    "KINDS",
    "NAMES",
    "Arrays",
    "FederatedData",
    "Split",
    "Splits",
    "available",
    "federate",
    "histogram",
    "label_counts",
    "load",
    "load_own",
    "mean_and_std",
    "partition",
    "scaled",
    "split",
    "split_one",
]
