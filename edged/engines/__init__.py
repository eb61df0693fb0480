"""Controls engines (models that a backend compiled for a device). Compares the engines that exist with those that the
models should have, and acts on the differences. The modules that decide are pure."""
