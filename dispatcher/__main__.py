"""`python -m dispatcher`: the same as `dispatcher`."""

import sys

from dispatcher.base.libraries import missing_libraries_named


def main() -> int:
    """Run the command line of this process; the exit code."""
    with missing_libraries_named():
        from dispatcher.cli.main import main as run

        return run()


if __name__ == "__main__":
    sys.exit(main())
