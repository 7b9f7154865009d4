"""Data sets, one file for each form on disk."""
