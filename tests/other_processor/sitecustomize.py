"""Makes a daemon believe that it runs on another processor: Python imports this file at its start if PYTHONPATH names
the folder."""

import sys

if "serve" in sys.orig_argv:
    from edged.device import fingerprint

    def other(base: object) -> dict[str, str]:
        return {"cpu.model": "Another processor with the same instructions"}

    fingerprint.PROBES = (other, *fingerprint.PROBES)
