"""Flower's SuperNode in a process that ends when its work ends: `python supernode.py …`.

In Flower 1.41 an error after the first connection leaves the program standing with its port open and nothing to do.
A file of its own that needs nothing but Flower: it has no use for PyTorch.
"""

import os
import sys
import traceback

from flwr.supernode.cli.flower_supernode import flower_supernode

if __name__ == "__main__":
    code: object = 1
    try:
        flower_supernode()
    except SystemExit as e:
        code = e.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)
