"""Invalid input of every kind: structured nonsense for every call, and bytes that follow no protocol."""

from __future__ import annotations

import os
from typing import Final

# Seconds for any call. The emulated box has a factor for all waits of the tests (tests/system/arm64/inside.py).
PATIENCE: Final = 60.0 * float(os.environ.get("EDGED_ARM64_PATIENCE", "1"))
