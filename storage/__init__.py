"""Message storage: messages, backing queues, the journal and the LMDB store."""
