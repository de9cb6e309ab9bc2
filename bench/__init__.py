"""Where Leveret's speed is measured: against other brokers, against the interpreter, and at scale."""
