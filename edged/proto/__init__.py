"""gRPC messages generated from protos/ when the package is built; nothing else here is edited by hand."""

from google.protobuf.descriptor_pool import DescriptorPool

# Not the process's default pool: tritonclient registers its package `inference` there.
POOL = DescriptorPool()
