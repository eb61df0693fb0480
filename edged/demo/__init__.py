"""The demo: a daemon in a temporary folder, drawn cameras with known ground truth, and a report."""
