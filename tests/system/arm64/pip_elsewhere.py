"""pip for another machine: `python pip_elsewhere.py '{"python_version": "3.10", ...}' install --platform ...`.

--platform and --python-version select files, but pip evaluates markers such as `python_version < '3.11'` for the
interpreter that runs it. This program evaluates them for the machine that is given as JSON.
"""

from __future__ import annotations

import json
import sys

from pip._internal.cli.main import main
from pip._vendor.packaging import markers

if __name__ == "__main__":
    _here = markers.default_environment
    _there = json.loads(sys.argv[1])
    markers.default_environment = lambda: {**_here(), **_there}
    sys.exit(main(sys.argv[2:]))
