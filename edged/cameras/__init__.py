"""The daemon's side of configured cameras: their definitions, and the supervision of the processes (`edged.capture`)
that run them."""
