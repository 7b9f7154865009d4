"""The command line and what stands behind it: configuration files, runs, sweeps, reports."""
