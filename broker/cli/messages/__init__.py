"""Commands on the messages of a running broker: `leveret peek` and others, which are clients of the management API."""
