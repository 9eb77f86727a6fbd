"""The plain loop on tensors in memory, indexed by a permutation."""

from __future__ import annotations

from functools import partial

from dealt import given
from plain import federate, shuffled

if __name__ == "__main__":
    dealt = given()
    federate(dealt, [partial(shuffled, *pair, dealt.settings["batch"]) for pair in dealt.clients])
