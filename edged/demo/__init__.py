"""The demonstration: a daemon in a scratch folder, drawn cameras with known truth, and a report."""
