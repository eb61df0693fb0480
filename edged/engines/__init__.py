"""Controls engines (models that a backend compiled for a device). Compares the engines that exist with the engines that
the models should have, and acts on the differences. Modules that only make decisions are pure: they have no side
effects."""
