"""The demonstration: a daemon in a scratch folder, drawn cameras with known truth, and what there is to see."""
