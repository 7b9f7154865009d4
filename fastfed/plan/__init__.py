"""The plan room: who takes part in a round, from which model, for how long, with which rule and learning rates."""

from .participation import Chosen, Given, Participation, Poisson, Uniform, participation
from .round import LocalWork, Planner, PlanTemplate, RoundPlan, SyncPlanner, Tuning, factor

__all__ = [
    "Chosen",
    "Given",
    "LocalWork",
    "Participation",
    "PlanTemplate",
    "Planner",
    "Poisson",
    "RoundPlan",
    "SyncPlanner",
    "Tuning",
    "Uniform",
    "factor",
    "participation",
]
