"""Run hostile or broken clients against a daemon and measure how a well-behaved camera fares: `make attack`."""
