"""One file per detector family. `contract` defines one, `outputs` and `candidates` hold the steps that they share."""
