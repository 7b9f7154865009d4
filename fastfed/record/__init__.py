"""The record room: rows, evaluation, costs, and where they are written or shown."""
