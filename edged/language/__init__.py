"""Language models in the daemon: their hosts and queues, the choice of the runtime, and checks of answers."""
