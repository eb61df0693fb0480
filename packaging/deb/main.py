"""The command edged. It is a file, because `python -m edged` would import modules from the current folder."""

import sys

from edged.__main__ import main

sys.exit(main())
