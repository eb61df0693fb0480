"""The process of one configured camera: opens its source, streams it to the daemon, passes on what was found."""
