"""The configuration: keys, files, environment and flags."""
