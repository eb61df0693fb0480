"""One scrape's samples, on the way from the rooms to Prometheus' text."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from edged.metrics.names import ALL, Metric
from edged.serving.histogram import Histogram

_FAMILIES = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class Sheet:
    """Filled on the event loop, which is quick; written out elsewhere. Every metric is there, if only its meaning."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {metric.name: {} for metric in ALL}
        self._histograms: dict[str, dict[tuple[str, ...], tuple[list[tuple[float, int]], float]]] = {}

    def put(self, metric: Metric, value: float, *labels: str) -> None:
        """One sample; of two with the same labels the later one counts."""
        self._values[metric.name][labels] = value

    def add(self, metric: Metric, value: float, *labels: str) -> None:
        """To a sample that may be there."""
        known = self._values[metric.name]
        known[labels] = known.get(labels, 0.0) + value

    def spread(self, metric: Metric, histogram: Histogram, *labels: str) -> None:
        """A histogram as it is now."""
        self._histograms.setdefault(metric.name, {})[labels] = (histogram.cumulative(), histogram.total)

    def collect(self) -> Iterator[Family]:
        """In the order of the list; what `prometheus_client.exposition` asks a registry for."""
        for metric in ALL:
            if metric.kind == "histogram":
                yield self._spread(metric)
                continue
            family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
            for labels, value in self._values[metric.name].items():
                family.add_metric(labels, value)
            yield family

    def _spread(self, metric: Metric) -> Family:
        family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, (buckets, total) in self._histograms.get(metric.name, {}).items():
            named = [("+Inf" if math.isinf(bound) else repr(bound), float(count)) for bound, count in buckets]
            family.add_metric(labels, named, total)
        return family
