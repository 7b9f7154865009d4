"""Benchmarks, peers included: one folder for what is timed; modules beside them are commands of their own."""
