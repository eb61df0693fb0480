"""The process of one configured camera: opens the source, streams to the daemon, and passes results to outputs."""
