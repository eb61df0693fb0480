"""The daemon's side of configured cameras: their definitions, and the supervision of their processes
(`edged.capture`)."""
