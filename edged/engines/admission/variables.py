"""Variables of the environment that limit admission where no daemon, and with it no configuration, is asked."""

from __future__ import annotations

from typing import Final

SECONDS: Final = "EDGED_ADMISSION_SECONDS"
MEMORY_MB: Final = "EDGED_ADMISSION_MEMORY_MB"
