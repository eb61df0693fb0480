"""gRPC messages generated from protos/ when the package is built; nothing here is edited by hand."""
