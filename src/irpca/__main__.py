"""``python -m irpca`` is the command ``irpca``."""

import sys

from .cli import main

sys.exit(main())
