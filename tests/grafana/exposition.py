"""Answers to scrapes, read by the parser of Prometheus' own client."""

from collections import Counter
from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


class Scraped:
    """One answer; raises AssertionError for a family or a series that comes twice.

    Args:
        pieces: its text.
        others: whether somebody else made it, who may have families without a series.

    Attributes:
        families: by name, without `_total`.
        samples: values by name and labels.

    """

    def __init__(self, pieces: Iterable[str], *, others: bool = False) -> None:
        self.text = "".join(pieces)
        names = [line.split()[2] for line in self.text.splitlines() if line.startswith("# TYPE ")]
        assert [] == [name for name, count in Counter(names).items() if count > 1]
        self.families: dict[str, Metric] = {}
        self.samples: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(self.text):
            assert family.samples or others, family.name
            self.families[family.name] = family
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.samples, key
                self.samples[key] = sample.value

    def value(self, name: str, /, **labels: str) -> float:
        """The value of one series, all of whose labels are given."""
        return self.samples[name, tuple(sorted(labels.items()))]

    def values(self, name: str) -> dict[Labels, float]:
        return {labels: value for (found, labels), value in self.samples.items() if found == name}

    def kind(self, name: str) -> str:
        """The type of the family that a sample belongs to."""
        return next(
            family.type
            for family in self.families.values()
            if any(name == each.name for each in family.samples)
        )

    def changed(self, earlier: "Scraped") -> Mapping[str, float]:
        """Return the change of each sum of series since an earlier answer."""
        before, after = Counter(), Counter()
        for (name, _), value in earlier.samples.items():
            before[name] += value
        for (name, _), value in self.samples.items():
            after[name] += value
        return {name: after[name] - before[name] for name in after | before if after[name] != before[name]}
