"""`python -m dispatcher`: the same as `dispatcher`."""

import sys

from dispatcher.cli.main import main

sys.exit(main())
