"""Language models in the daemon: their hosts, the queue of each, the choice of the runtime, and checks of answers."""
