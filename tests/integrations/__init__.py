"""FastFed in its hosts: each file needs the real package, and is skipped where that is missing."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # nothing of a test leaves the machine
