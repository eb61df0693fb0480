"""The process of one configured camera: opens its source, streams it to the daemon, and passes results to its
outputs."""
