"""Benchmarks, peers included: one file per concern, run by `fastfed bench`."""
