"""FastFed inside other frameworks, which it does not need itself: ``fastfed.integrations.flower`` and ``.pfl`` import
their hosts, and say what to install where one is missing."""

from .functional import FunctionalState, functional
from .local import LocalTraining, RoundSettings

__all__ = ["FunctionalState", "LocalTraining", "RoundSettings", "functional"]
