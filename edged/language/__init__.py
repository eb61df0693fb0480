"""Language models in the daemon: their hosts and queues, the choice of a runtime, and checks of answers."""
