"""What server and clients exchange or keep besides the model: control variates (SCAFFOLD), a preconditioner (FedAda2's
DJA), previous models (MOON).

Settings are frozen; what they keep during a run lives in an `Exchanger`.
"""

from .client_store import ClientStore
from .moon import PreviousModels
from .preconditioner import Preconditioner
from .protocol import Exchange, Exchanger, NoExchanger, VectorStore
from .scaffold import ControlVariates

__all__ = [
    "ClientStore",
    "ControlVariates",
    "Exchange",
    "Exchanger",
    "NoExchanger",
    "Preconditioner",
    "PreviousModels",
    "VectorStore",
]
