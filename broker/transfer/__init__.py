"""Transfers: messages that an operator moves, copies, discards, retries or replays, by a condition, in batches."""
