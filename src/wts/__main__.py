"""`python -m wts` is `wts`."""

import sys

from wts.cli import main

sys.exit(main())
