"""Good and bad models, made from code: how each is made, and what has to become of it.

Nothing of it is kept as a file: every model is written into a folder of the test's own, quickly and always the same.
`manifest.py` lists them all. `python -m tests.zoo --help` shows, writes and tries them on ONNX Runtime alone.
"""
