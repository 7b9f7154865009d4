"""Differential privacy in the aggregate room: the bound that deltas are clipped to, and Gaussian noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..kernels import Stream, normal
from ..packing import Packing
from ..privacy import Privacy, next_clip, noise_std
from ..purposes import Purpose

_OF_DELTAS, _OF_COUNT = 0, 1  # the steps of the noise's stream


class Noise:
    """N(0, (sigma c / expected)^2) for every parameter, where deltas are clipped to the norm c and summed over the
    `expected` cohort size: a client more or less, whatever it sends, moves the sum by at most c / expected.

    With adaptive clipping, c follows a quantile of the norms.
    """

    def __init__(
        self, privacy: Privacy, expected: float, packing: Packing, seed: int, *, device: torch.device | str = "cpu"
    ) -> None:
        self.privacy, self.expected, self.seed = privacy, expected, seed
        self.clip = privacy.clip
        noise_std(privacy, privacy.clip, expected)  # refuses noise that cannot be had now, not in the first round
        self._is_parameter = packing.zeros(device=device)  # the gaps of the packed vector stay empty
        for view in packing.views(self._is_parameter).values():
            view.fill_(1)

    @property
    def is_there(self) -> bool:
        return self.privacy.noise > 0

    def added(self, round: int, delta: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """The sum (d,) with noise, and what a row tells of it."""
        if self.clip is None:
            return delta, {}
        std = noise_std(self.privacy, self.clip, self.expected)
        columns = {"clip": self.clip, "noise_std": std}
        if std == 0:
            return delta, columns
        stream = Stream(self.seed, Purpose.NOISE, round, step=_OF_DELTAS)
        noise = normal(delta.numel(), stream, device=delta.device).to(delta.dtype)
        return torch.addcmul(delta, noise, self._is_parameter.to(delta.dtype), value=std), columns

    def adapt(self, round: int, norms: Tensor) -> None:
        """Moves the bound towards the quantile of the norms (n,) of the clients that count."""
        if self.privacy.adaptive is None or self.clip is None:
            return
        noise = float(normal(1, Stream(self.seed, Purpose.NOISE, round, step=_OF_COUNT)))
        self.clip = next_clip(self.privacy.adaptive, self.clip, norms, self.expected, noise)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.clip is None else {"clip": torch.tensor([self.clip], dtype=torch.float64)}

    def load(self, tensors: dict[str, Tensor]) -> None:
        if "clip" in tensors:
            self.clip = float(tensors["clip"])
