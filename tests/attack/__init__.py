"""What hostile or broken clients do to a daemon, and what a well-behaved camera notices of it: `make attack`."""
