"""Detector families, related ones in one file. `contract` defines one, `decoding` holds the steps that they share."""
