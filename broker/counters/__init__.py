"""Counters, histograms and samples of latencies."""
