"""Run `python -m edged` so that it is killed with the process that started it.

`python -m edged.demo.run_with_parent serve ...`: a demonstration that is itself killed leaves no daemon running.
"""

from __future__ import annotations

import os
import runpy

from edged.process import die_with_parent

if __name__ == "__main__":
    die_with_parent(os.getppid())
    runpy.run_module("edged", run_name="__main__", alter_sys=True)
