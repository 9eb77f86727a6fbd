"""Divide a budget among the clients of a record.

    proportional    a_i = B e_i / Σ_j e_j
    floor           a_i = φ B / M + (1 - φ) B e_i / Σ_j e_j     for the M clients with e_i > 0
    participation   a_i = B p_i / Σ_j p_j

B is the budget, e_i what client i earned (`celm.federation.earnings`), φ the part that is divided equally, and p_i the
number of rounds in which an update of client i was used and shows training. Amounts are rounded by the method of the
largest remainder, so they add up to the budget: each is rounded down, and the units that are left go, one each, to the
largest remainders; of equal ones to the first in client order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any

from celm.base.client_order import natural_sorted
from celm.base.errors import CelmError, suggest_name
from celm.operations.folder_record import FolderRecord, trained_clients
from celm.records.federation_records import FederationRound

_MAX_UNITS = 2**53
"""Largest budget in units of the last decimal: JSON has all amounts exactly."""
_MAX_DECIMALS = 8


class Scheme(StrEnum):
    """How a budget is divided."""

    proportional = "proportional"
    floor = "floor"
    participation = "participation"


@dataclass(frozen=True)
class Payment:
    """What one client gets."""

    client: str
    key: str | None
    """The last fingerprint of its key."""
    rounds_trained: int
    """Rounds in which its update was used and shows training."""
    earned: float
    share: Fraction
    """Its part of the budget before rounding."""
    amount: Decimal


@dataclass(frozen=True)
class Payout:
    """A divided budget. The amounts add up to it."""

    scheme: Scheme
    budget: Decimal
    rounds: int
    digest: str
    """The digest of the record."""
    payments: Sequence[Payment]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each client."""
        return [
            {
                "client": payment.client,
                "key": payment.key,
                "rounds_trained": payment.rounds_trained,
                "earned": payment.earned,
                "share": float(payment.share),
                "amount": payment.amount,
                "scheme": self.scheme.value,
                "rounds": self.rounds,
                "record": self.digest,
            }
            for payment in self.payments
        ]


def divide_budget(
    record: FolderRecord,
    budget: str,
    scheme: str = Scheme.proportional,
    floor: float = 0.2,
    decimals: int = 2,
) -> Payout:
    """Divide the budget among all clients of the record."""
    if scheme not in [*Scheme]:
        raise CelmError(f"unknown scheme '{scheme}'", suggest_name(scheme, [*Scheme]))
    if not 0 <= floor <= 1:
        raise CelmError(f"--floor must be between 0 and 1, not {floor}")
    if not 0 <= decimals <= _MAX_DECIMALS:
        raise CelmError(f"--decimals must be between 0 and {_MAX_DECIMALS}, not {decimals}")
    amount = parse_budget(budget, decimals)
    clients = natural_sorted(record.clients)
    earned = record.rounds[-1].earned
    trained = Counter(client for line in record.rounds for client in trained_clients(line))
    shares = _shares(Scheme(scheme), clients, earned, trained, Fraction(str(floor)))
    if shares is None:
        raise CelmError(
            f"cannot divide the budget: no client of {record.folder} has earned anything",
            None if earned else "an older celm wrote this record; use --scheme participation",
        )
    units = largest_remainder(int(amount.scaleb(decimals)), [shares[client] for client in clients])
    keys: dict[str, str] = {}
    for line in record.rounds:
        keys |= line.keys if isinstance(line, FederationRound) else {}
    payments = [
        Payment(
            client,
            keys.get(client),
            trained[client],
            earned.get(client, 0.0),
            shares[client],
            Decimal(count).scaleb(-decimals),
        )
        for client, count in zip(clients, units, strict=True)
    ]
    return Payout(Scheme(scheme), amount, record.rounds[-1].round, record.digest, payments)


def parse_budget(text: str, decimals: int = 2) -> Decimal:
    """Return a positive amount with `decimals` decimals.

    >>> parse_budget("10000.5")
    Decimal('10000.50')
    """
    stripped = text.strip()
    if not re.fullmatch(r"\+?\d{1,40}(\.\d{1,40})?", stripped, re.ASCII):
        raise CelmError(
            f"budget '{text[:40]}' is not a positive amount", "give a number such as 10000 or 10000.50"
        )
    whole, _, fraction = stripped.partition(".")
    if len(fraction.rstrip("0")) > decimals:
        raise CelmError(f"budget {stripped} has more than {decimals} decimals", "round it, or set --decimals")
    units = int(whole + fraction.rstrip("0").ljust(decimals, "0"))
    if not 0 < units <= _MAX_UNITS:
        raise CelmError(
            f"budget '{text[:40]}' must be above 0 and at most {Decimal(_MAX_UNITS).scaleb(-decimals)}"
        )
    return Decimal(units).scaleb(-decimals)


def largest_remainder(total: int, shares: Sequence[Fraction]) -> list[int]:
    """Divide `total` units by shares with sum 1.

    >>> largest_remainder(100, [Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)])
    [34, 33, 33]
    """
    exact = [total * share for share in shares]
    units = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: units[i] - exact[i])
    for i in by_remainder[: total - sum(units)]:
        units[i] += 1
    return units


def _shares(
    scheme: Scheme,
    clients: Sequence[str],
    earned: Mapping[str, float],
    trained: Mapping[str, int],
    floor: Fraction,
) -> dict[str, Fraction] | None:
    """Return client to its part of the budget, exactly; None if there is nothing to divide by."""
    if scheme is Scheme.participation:
        weights = {client: Fraction(trained[client]) for client in clients}
    else:
        weights = {client: Fraction(earned.get(client, 0.0)) for client in clients}
    total = sum(weights.values())
    if not total:
        return None
    shares = {client: weight / total for client, weight in weights.items()}
    if scheme is Scheme.floor:
        earning = sum(share > 0 for share in shares.values())
        shares = {
            client: floor / earning + (1 - floor) * share if share else share
            for client, share in shares.items()
        }
    return shares
