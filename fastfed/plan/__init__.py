"""The plan room: who takes part in a round, from which model, for how long, with which rule and learning rates."""

from .availability import Cyclic, Sinusoidal
from .participation import Chosen, Given, Participation, Poisson, Uniform, participation
from .round import LocalWork, Planner, PlanTemplate, RoundPlan, SyncPlanner, Tuning, factor
from .sampled import Sampled
from .shares import Dirichlet, LogNormal

__all__ = [
    "Chosen",
    "Cyclic",
    "Dirichlet",
    "Given",
    "LocalWork",
    "LogNormal",
    "Participation",
    "PlanTemplate",
    "Planner",
    "Poisson",
    "RoundPlan",
    "Sampled",
    "Sinusoidal",
    "SyncPlanner",
    "Tuning",
    "Uniform",
    "factor",
    "participation",
]
