"""Language models for clients: OpenAI's protocol, edged.v1.Language, and Triton's ModelStreamInfer with the tensor
names of its vLLM backend."""
