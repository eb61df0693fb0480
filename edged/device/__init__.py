"""Facts about this box (hardware, drivers, runtimes), its devices, and its load."""
