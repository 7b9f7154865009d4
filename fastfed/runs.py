"""Run directories, as `fastfed run` writes them, from Python."""

from .app.runs import DamagedRun, Run, RunExists, RunFailed, execute, find, holds_run, read

__all__ = ["DamagedRun", "Run", "RunExists", "RunFailed", "execute", "find", "holds_run", "read"]
