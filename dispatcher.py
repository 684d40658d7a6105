"""Run the dispatcher from a checkout: `python dispatcher.py --pod NAME --gpus 0,1,2,3`."""

import sys

from dispatcher.__main__ import main

sys.exit(main())
