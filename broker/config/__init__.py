"""The configuration: keys, files, environment variables and flags."""
