"""Flower's SuperNode in a process that ends when the SuperNode fails: `python supernode.py …`.

In Flower 1.41 the process stays alive without doing anything if an error occurs after the first connection. This file
imports only Flower, so that the process does not load PyTorch.
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
