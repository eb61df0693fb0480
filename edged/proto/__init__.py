"""gRPC messages generated from protos/ when the package is built; nothing else here is edited by hand."""

from pathlib import Path

from google.protobuf.descriptor_pool import DescriptorPool

# Not the process's default pool: tritonclient registers its package `inference` there.
POOL = DescriptorPool()
FOLDER = Path(__file__).parent  # also of the .proto files, for clients in other languages
