"""An engine host: the process that opens engines and runs inference. The daemon does not import it."""
