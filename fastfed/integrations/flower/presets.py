"""Flower's strategies by name, with its arguments, its defaults and its formulas, step for step: only faster.

What its formulas do otherwise than the papers', which ``ff.servers`` follow: second moments start at 0 and are of the
raw delta; FedAdam corrects its bias by the factor of a round later, in the learning rate.
"""

from __future__ import annotations

from typing import Any

from ... import servers
from .strategy import ServerStrategy


class FedAvg(ServerStrategy):
    """Flower's FedAvg: the weighted mean of the replies."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(servers.FedAvg(), **settings)


class FedAvgM(ServerStrategy):
    """Flower's FedAvgM: x += server_learning_rate * m with m = server_momentum * m + delta."""

    def __init__(self, *, server_learning_rate: float = 1.0, server_momentum: float = 0.0, **settings: Any) -> None:
        self.server_learning_rate, self.server_momentum = server_learning_rate, server_momentum
        plain = servers.FedAvg(lr=server_learning_rate)
        moving = servers.FedAvgM(lr=server_learning_rate, momentum=server_momentum)
        super().__init__(moving if server_momentum else plain, **settings)


class FedAdagrad(ServerStrategy):
    """Flower's FedAdagrad. `eta_l`, the clients' learning rate, is kept, as there, and used by nobody."""

    def __init__(self, *, eta: float = 1e-1, eta_l: float = 1e-1, tau: float = 1e-3, **settings: Any) -> None:
        self.eta, self.eta_l, self.tau = eta, eta_l, tau
        super().__init__(servers.FedAdagrad(lr=eta, tau=tau, v0=0.0, second_moment_of="delta"), **settings)


class FedAdam(ServerStrategy):
    """Flower's FedAdam: in round t, from 1, its learning rate is eta sqrt(1 - beta_2^(t+1)) / (1 - beta_1^(t+1)).
    `eta_l` as in `FedAdagrad`."""

    def __init__(
        self,
        *,
        eta: float = 1e-1,
        eta_l: float = 1e-1,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        **settings: Any,
    ) -> None:
        self.eta, self.eta_l, self.beta_1, self.beta_2, self.tau = eta, eta_l, beta_1, beta_2, tau
        chosen: dict[str, Any] = {"beta1": beta_1, "beta2": beta_2, "tau": tau}
        super().__init__(servers.FedAdam(lr=eta, v0=0.0, second_moment_of="delta", **chosen), **settings)

    def step_options(self, server_round: int) -> dict[str, Any]:
        options = super().step_options(server_round)
        power = server_round + 1
        corrected = self.eta * (1 - self.beta_2**power) ** 0.5 / (1 - self.beta_1**power)
        return {**options, "lr": corrected}


class FedYogi(ServerStrategy):
    """Flower's FedYogi. `eta_l` as in `FedAdagrad`."""

    def __init__(
        self,
        *,
        eta: float = 1e-2,
        eta_l: float = 0.0316,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
        **settings: Any,
    ) -> None:
        self.eta, self.eta_l, self.beta_1, self.beta_2, self.tau = eta, eta_l, beta_1, beta_2, tau
        chosen: dict[str, Any] = {"beta1": beta_1, "beta2": beta_2, "tau": tau}
        super().__init__(servers.FedYogi(lr=eta, v0=0.0, second_moment_of="delta", **chosen), **settings)
