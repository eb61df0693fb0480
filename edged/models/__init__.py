"""Models: the content of an ONNX file, its digest, its settings, and the repository on disk."""
