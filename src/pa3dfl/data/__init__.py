"""Data: from files to the tensors of a federation."""

from pa3dfl.core.options.names import DATA as NAMES
from pa3dfl.core.options.names import PARTITIONS as KINDS
from pa3dfl.data.arrays import UNKNOWN, Arrays, Columns
from pa3dfl.data.federated import FederatedData, federate, histogram, mean_and_std, scaled
from pa3dfl.data.partition import Split, Splits, label_counts, partition, split_one
from pa3dfl.data.readers import rows as load_rows
from pa3dfl.data.readers.npz import load_own
from pa3dfl.data.sources import available, load

__all__ = [
    "KINDS",
    "NAMES",
    "UNKNOWN",
    "Arrays",
    "Columns",
    "FederatedData",
    "Split",
    "Splits",
    "available",
    "federate",
    "histogram",
    "label_counts",
    "load",
    "load_own",
    "load_rows",
    "mean_and_std",
    "partition",
    "scaled",
    "split_one",
]
