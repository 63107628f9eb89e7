"""``python -m undaunted`` is the command `undaunted`."""

import sys

from undaunted.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
