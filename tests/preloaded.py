"""What the process that tests fork from (forks.py) imports once: hundreds of its children use it.

Python 3.11 gives that process the path of its first entry only, and says nothing of a module that it does not find.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from tests.run_state import test_crash  # noqa: F401 - found through the path above
