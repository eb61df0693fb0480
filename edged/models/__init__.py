"""Models: what an ONNX file holds, what identifies it, its settings, and the repository on disk."""
