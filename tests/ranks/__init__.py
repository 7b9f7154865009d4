"""Runs of several processes, real ones: they meet on this machine's loopback."""
