"""The plain loop on tensors in memory, indexed by a permutation."""

from __future__ import annotations

from functools import partial

from dealt import read_arguments
from plain import federate, shuffled_batches

if __name__ == "__main__":
    data = read_arguments()
    federate(data, [partial(shuffled_batches, *pair, data.settings["batch"]) for pair in data.clients])
