"""Algorithms in Python, written as a user would write them (docs/own.md): servers (`FedExP`, `FedNova`,
`FedDynServer`) and client algorithms (`FedDyn`, `FedLion`, `Ditto`, `KeptMomentum`). ``ff.methods`` puts them together.

A module each, as short as its listing; nothing here is known to the rest but by these names.
"""

from .ditto import Ditto
from .feddyn import FedDyn, FedDynServer
from .fedexp import FedExP
from .fedlion import FedLion
from .fednova import FedNova
from .kept_momentum import KeptMomentum

__all__ = ["Ditto", "FedDyn", "FedDynServer", "FedExP", "FedLion", "FedNova", "KeptMomentum"]
