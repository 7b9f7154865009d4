"""pfl's own names, in one place: what this package takes from it, or what to install."""

from __future__ import annotations

from ...extras import needed

_pfl = needed("pfl.model.pytorch", extra="pfl", by="fastfed.integrations.pfl", package="pfl")

from pfl.algorithm import FederatedAveraging  # noqa: E402
from pfl.metrics import MetricName, Metrics, Weighted  # noqa: E402
from pfl.stats import MappedVectorStatistics  # noqa: E402

__all__ = ["FederatedAveraging", "MappedVectorStatistics", "MetricName", "Metrics", "Weighted"]
