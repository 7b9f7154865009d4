"""What benchmarks share: where they run, how they take turns, and who else uses the machine."""
