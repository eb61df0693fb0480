"""Good and bad models, made by code: how each is made, and its expected outcome.

No model is stored: every one is written into the test's folder, quickly and with the same content each time.
`manifest.py` lists them all. `python -m tests.zoo --help` shows, writes and tries them on ONNX Runtime alone.
"""
