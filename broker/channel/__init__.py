"""Channels: publishing, delivery, settling, confirms and transactions."""
