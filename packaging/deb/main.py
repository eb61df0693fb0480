"""The command edged. As a file in a folder of its own: `python -m` would import from the current folder."""

import sys

from edged.__main__ import main

sys.exit(main())
