"""inference.GRPCInferenceService: the Open Inference Protocol with the extensions of Triton."""
