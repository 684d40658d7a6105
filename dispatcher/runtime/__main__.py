"""`python -m dispatcher.runtime`: see `command_line`."""

import sys

from dispatcher.runtime.command_line import main

sys.exit(main())
