"""`python -m pa3dfl.cli`, for when the script `pa3dfl` is not on the PATH."""

import sys

from pa3dfl.cli import main

sys.exit(main())
