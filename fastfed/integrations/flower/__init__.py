"""FastFed in Flower: its servers as strategies, and its engine behind a `Grid` or in a `ClientApp` (docs/flower.md)."""

from .app import client_app
from .grid import NativeGrid
from .presets import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi
from .strategy import ServerStrategy

__all__ = ["FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedYogi", "NativeGrid", "ServerStrategy", "client_app"]
