"""The table ``[log]``: where a run is told besides its directory. It changes no result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel

from ...loggers import Logger, MLflow, TensorBoard, WandB
from .options import arguments_of, checked, plain_model, table_model, written

LOG = "log"
LOGGERS: Mapping[str, Callable[..., Logger]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
# All dotted keys that may differ between two starts of a run.
KEYS = (
    LOG,
    *(f"{LOG}.{name}" for name in LOGGERS),
    *(f"{LOG}.{name}.{argument}" for name, make in LOGGERS.items() for argument in arguments_of(make)),
)


def model() -> type[BaseModel]:
    """The pydantic model of the table."""
    kinds = {name: table_model(kind, title=f"{LOG}_{name}") for name, kind in LOGGERS.items()}
    return plain_model(LOG, "Other tools that are told of the run.", kinds)


def read(table: Any) -> dict[str, Logger]:
    """The loggers that the table asks for."""
    return checked(model(), LOG, table, f"[{LOG}]")


def write(loggers: Mapping[str, Logger]) -> dict[str, Any]:
    """The table of these loggers."""
    return {name: written(one) for name, one in loggers.items()}
