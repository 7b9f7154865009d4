"""What a run's model is worth: on the test set, a validation set, all training examples, and client by client."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..data import Federation
from .evaluate import Evaluator, PackedModel, evaluated_clients, evaluation_visit, training_rows, validation_rows

OwnModels = Callable[[Tensor, Tensor], Callable[[int], PackedModel] | None]
TunedModels = Callable[[Tensor], Callable[[int], PackedModel]]


class Evaluation:
    """The sets of examples that the data of a run has; `own_models` (x, clients) gives the models of clients that keep
    a part of theirs, None where nobody does."""

    def __init__(self, fed: Federation, evaluator: Evaluator, own_models: OwnModels) -> None:
        self._fed, self._evaluator, self._own_models = fed, evaluator, own_models

    def columns(
        self, x: Tensor, *, training: bool, per_client: bool, tuned: TunedModels | None = None
    ) -> dict[str, float]:
        """Loss and metric of the model `x` (d,) on each set, as columns of a row; over all training examples with
        `training`, the spread over clients with `per_client`, and over clients with `tuned` models with these."""
        found = self._of_sets(x, training) | (self._of_clients("client", x, self._own_models) if per_client else {})
        if tuned is not None:
            found |= self._of_clients("tuned", x, lambda _, clients: tuned(clients))
        if not found:
            raise ValueError(
                f"fed: {self._fed.name} has no test set; per_client=True evaluates on the clients' examples"
            )
        return found

    def _of_sets(self, x: Tensor, training: bool) -> dict[str, float]:
        found = {}
        if self._fed.test is not None:
            found["test"] = self._evaluator.evaluate(x, self._fed.test)
        held_out = validation_rows(self._fed)
        if held_out is not None:
            found["validation"] = self._evaluator.evaluate(x, self._fed.examples, held_out)
        if training:
            found["trainset"] = self._evaluator.evaluate(x, self._fed.examples, training_rows(self._fed))
        return {f"{part}_{name}": value for part, metrics in found.items() for name, value in metrics.items()}

    def _of_clients(self, prefix: str, x: Tensor, models: OwnModels) -> dict[str, float]:
        clients = evaluated_clients(self._fed)
        visit = evaluation_visit(self._fed, clients)
        metrics = self._evaluator.per_client(x, visit, models(x, clients))
        return {f"{prefix}_{name}": value for name, value in metrics.items()}
