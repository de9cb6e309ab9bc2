"""A channel: publishing, delivering, settling, confirms and transactions."""
