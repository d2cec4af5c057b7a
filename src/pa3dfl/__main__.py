"""`python -m pa3dfl`."""

import sys

from pa3dfl.cli import main

sys.exit(main())
