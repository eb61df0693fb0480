"""Whether a model file can be served on this box, by which backends, and why not: asked before it is taken in.

    file -> parse -> graph -> opset -> operators -> external data -> memory -> session -> inference

The file is read in one child (`jobs/inspect.py`), every runtime is tried in one of its own (`jobs/trial.py`),
two at a time. Each may crash, hang or grow: that is then what was found, at the stage that it had begun.
"""
