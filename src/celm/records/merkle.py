"""Merkle trees of RFC 6962: one digest for a list of leaves, and short proofs about it.

    leaf hash     SHA-256(0x00 || leaf)
    node hash     SHA-256(0x01 || left || right)
    tree hash     of n > 1 leaves: node hash of the first k leaves and of the others, k the largest power of two below n

An inclusion proof shows that a leaf is in a tree, without the other leaves. A consistency proof shows that an earlier
tree is the beginning of a later one. Both have at most about log2(n) hashes, and are checked as RFC 9162 says
(2.1.3.2 and 2.1.4.2).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

_LEAF, _NODE = b"\x00", b"\x01"
EMPTY_ROOT = hashlib.sha256().digest()


def hash_leaf(leaf: bytes) -> bytes:
    """Return the hash of a leaf.

    >>> hash_leaf(b"").hex()[:16]
    '6e340b9cffb37a98'
    """
    return hashlib.sha256(_LEAF + leaf).digest()


def hash_node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()


class MerkleTree:
    """A tree that grows. Each append costs two hashes on average; roots and proofs cost about log2(n)."""

    def __init__(self, leaf_hashes: Iterable[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]
        """Level h has the hashes of the complete subtrees of 2**h leaves, in order."""
        self.extend(leaf_hashes)

    @property
    def size(self) -> int:
        return len(self._levels[0])

    def extend(self, leaf_hashes: Iterable[bytes]) -> None:
        for leaf_hash in leaf_hashes:
            self._append(leaf_hash)

    def _append(self, leaf_hash: bytes) -> None:
        height, node = 0, leaf_hash
        self._levels[0].append(node)
        while len(self._levels[height]) % 2 == 0:
            node = hash_node(self._levels[height][-2], node)
            height += 1
            if height == len(self._levels):
                self._levels.append([])
            self._levels[height].append(node)

    def root(self, size: int | None = None) -> bytes:
        """Return the root of the first `size` leaves, by default of all."""
        return self._subtree(0, self._check_size(size))

    def inclusion_proof(self, index: int, size: int | None = None) -> list[bytes]:
        """Return the proof that the leaf at `index` is in the tree of the first `size` leaves."""
        end = self._check_size(size)
        if not 0 <= index < end:
            raise ValueError(f"leaf {index} is not in a tree of {end} leaves")
        start, path = 0, []
        while end - start > 1:
            split = start + _largest_power_below(end - start)
            if index < split:
                path.append(self._subtree(split, end))
                end = split
            else:
                path.append(self._subtree(start, split))
                start = split
        return path[::-1]

    def consistency_proof(self, old_size: int, size: int | None = None) -> list[bytes]:
        """Return the proof that the tree of the first `old_size` leaves is the beginning of that of `size` leaves."""
        start, end = 0, self._check_size(size)
        if not 0 <= old_size <= end:
            raise ValueError(f"{old_size} leaves are not the beginning of {end}")
        if old_size in (0, end):
            return []
        path: list[bytes] = []
        while old_size != end:
            split = start + _largest_power_below(end - start)
            if old_size <= split:
                path.append(self._subtree(split, end))
                end = split
            else:
                path.append(self._subtree(start, split))
                start = split
        if start > 0:  # otherwise the last subtree is the old tree, whose root the verifier knows
            path.append(self._subtree(start, end))
        return path[::-1]

    def _check_size(self, size: int | None) -> int:
        if size is None:
            return self.size
        if not 0 <= size <= self.size:
            raise ValueError(f"the tree has {self.size} leaves, not {size}")
        return size

    def _subtree(self, start: int, end: int) -> bytes:
        """Return the hash of the leaves `start` to `end`; `start` is a multiple of the subtree's width."""
        width = end - start
        if width == 0:
            return EMPTY_ROOT
        if width & (width - 1) == 0:
            height = width.bit_length() - 1
            return self._levels[height][start >> height]
        split = start + _largest_power_below(width)
        return hash_node(self._subtree(start, split), self._subtree(split, end))


def verify_inclusion(leaf_hash: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """Check that `path` proves the leaf at `index` in the tree of `size` leaves with this root."""
    if not 0 <= index < size:
        return False
    position, last, node = index, size - 1, leaf_hash
    for sibling in path:
        if last == 0:
            return False
        if position & 1 or position == last:
            node = hash_node(sibling, node)
            position, last = _ascend(position, last, _trailing_zeros(position))
        else:
            node = hash_node(node, sibling)
        position, last = _ascend(position, last, 1)
    return last == 0 and node == root


def verify_consistency(old_size: int, old_root: bytes, size: int, root: bytes, path: Sequence[bytes]) -> bool:
    """Check that `path` proves the tree of `old_size` leaves to be the beginning of that of `size` leaves."""
    if not 0 <= old_size <= size:
        return False
    if old_size == size:
        return not path and old_root == root
    if old_size == 0:
        return not path and old_root == EMPTY_ROOT
    position, last = old_size - 1, size - 1
    shift = _trailing_zeros(~position)  # the complete subtrees at the end of the old tree
    position, last = _ascend(position, last, shift)
    siblings = list(path) if position else [old_root, *path]
    if not siblings:
        return False
    old_node = node = siblings[0]
    for sibling in siblings[1:]:
        if last == 0:
            return False
        if position & 1 or position == last:
            old_node, node = hash_node(sibling, old_node), hash_node(sibling, node)
            position, last = _ascend(position, last, _trailing_zeros(position))
        else:
            node = hash_node(node, sibling)
        position, last = _ascend(position, last, 1)
    return last == 0 and old_node == old_root and node == root


def _ascend(position: int, last: int, levels: int) -> tuple[int, int]:
    """Return the index of a subtree and that of the last one, so many levels up."""
    return position >> levels, last >> levels


def _largest_power_below(number: int) -> int:
    """Return the largest power of two below `number`, which is at least 2."""
    return 1 << ((number - 1).bit_length() - 1)


def _trailing_zeros(number: int) -> int:
    """Return how many of the lowest bits are zero; 0 for the number 0."""
    return (number & -number).bit_length() - 1 if number else 0
