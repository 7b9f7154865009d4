"""Runs whose bits are kept: what a change of the plan of the house must not change."""
