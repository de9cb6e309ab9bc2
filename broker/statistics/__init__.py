"""Statistics of the management API: counters sampled at intervals, and the rates between two samples."""
