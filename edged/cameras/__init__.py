"""The daemon's part of configured cameras: their definitions, and the processes (`edged.capture`) that run them."""
