"""What each client has earned.

    e_i(t)   = c_i(t)   if the update of client i in round t was used and shows training, else 0
    earned_i = 1/t Σ_s≤t e_i(s)

c_i(t) is the client's contribution before it is scaled by its response rate, so that absence is not counted twice. A
client that never delivered a usable update has no weight. What a client loses in a round by a missing or excluded
update is not divided among the others. Contributions are relative: they sum to 1 over the clients that show training,
so the contribution of an idle client goes to the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from celm.base.client_order import natural_sorted
from celm.core.weights import normalise_weights


@dataclass(frozen=True)
class Earnings:
    """Sums over the finished rounds.

    >>> first = Earnings().record({"a": 0.75, "b": 0.25}, delivered=["a", "b"], unpaid=["b"])
    >>> first.record({"a": 0.75, "b": 0.25}, delivered=["b"]).earned
    {'a': 0.375, 'b': 0.125}
    """

    rounds: int = 0
    total: Mapping[str, float] = field(default_factory=dict)
    """Client to the sum of its e_i."""
    delivered: tuple[str, ...] = ()
    """Clients that delivered a usable update in some round, in client order."""

    def record(
        self, contributions: Mapping[str, float], delivered: Collection[str], unpaid: Collection[str] = ()
    ) -> Earnings:
        """Add a round. Clients in `unpaid` delivered an update that shows no training, or that a filter excluded."""
        ever_delivered = tuple(natural_sorted({*self.delivered, *delivered}))
        contributions = without_undelivered(contributions, ever_delivered)
        total = {
            name: self.total.get(name, 0.0)
            + (contributions.get(name, 0.0) if name in delivered and name not in unpaid else 0.0)
            for name in natural_sorted({*self.total, *contributions})
        }
        return Earnings(self.rounds + 1, total, ever_delivered)

    @property
    def earned(self) -> dict[str, float]:
        """Client to the mean of its e_i over all finished rounds."""
        return {name: value / self.rounds for name, value in self.total.items()}


def without_undelivered(weights: Mapping[str, float], delivered: Collection[str]) -> dict[str, float]:
    """Return the weights with 0 for clients that never delivered a usable update, scaled to sum 1.

    >>> without_undelivered({"a": 0.5, "b": 0.25, "c": 0.25}, ["a", "b"])
    {'a': 0.6666666666666666, 'b': 0.3333333333333333, 'c': 0.0}
    """
    if set(weights) <= set(delivered):
        return dict(weights)
    paid = normalise_weights({name: weight for name, weight in weights.items() if name in delivered})
    return {name: paid.get(name, 0.0) for name in weights}
