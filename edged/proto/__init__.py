"""Contains the gRPC messages. The build of the package creates the other files in this folder from protos/. Only this
file is edited by hand."""

from pathlib import Path

from google.protobuf.descriptor_pool import DescriptorPool

# Not the process's default pool: tritonclient registers its package `inference` there.
POOL = DescriptorPool()
FOLDER = Path(__file__).parent  # also has the .proto files, for clients in other languages
