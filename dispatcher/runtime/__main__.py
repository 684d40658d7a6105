"""`python -m dispatcher.runtime`: see `command_line`."""

import sys

from dispatcher.base.libraries import missing_libraries_named
from dispatcher.runtime.preemption import Preemption

# From the first moment on: a SIGTERM while JAX is imported is a preemption too.
with Preemption(), missing_libraries_named():
    from dispatcher.runtime.command_line import main

    sys.exit(main())
