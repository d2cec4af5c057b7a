"""`python -m pa3dfl.cli`."""

import sys

from pa3dfl.cli import main

sys.exit(main())
