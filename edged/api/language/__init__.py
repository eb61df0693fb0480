"""Language models for clients: OpenAI's protocol, Triton's streams with the names of vLLM, and edged.v1.Language."""
