"""`python -m edged.demo.leash serve ...`: the same as `python -m edged serve ...`, but killed with whoever started it,
so that a demonstration that is itself killed leaves no daemon running."""

from __future__ import annotations

from edged import process

if __name__ == "__main__":
    process.die_with_parent()

    from edged.__main__ import main

    main()
