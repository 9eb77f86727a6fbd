"""Trees and proofs against the vectors of certificate transparency, and against the definition of RFC 6962."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celm.records.merkle import MerkleTree, hash_leaf, verify_consistency, verify_inclusion

# The reference vectors of certificate transparency (google/certificate-transparency, merkle_tree_test).
LEAVES = [
    bytes.fromhex(text)
    for text in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
INCLUSION = [
    (0, 1, []),
    (
        *(0, 8),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        *(5, 8),
        [
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (2, 3, ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
    (
        *(1, 5),
        [
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]
CONSISTENCY = [
    (1, 1, []),
    (
        *(1, 8),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        *(6, 8),
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (
        *(2, 5),
        [
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
]
TREE = MerkleTree(map(hash_leaf, LEAVES))


@pytest.mark.parametrize("size", range(9))
def test_roots_are_the_published_ones(size: int) -> None:
    assert TREE.root(size).hex() == ROOTS[size]


@pytest.mark.parametrize(("index", "size", "path"), INCLUSION)
def test_inclusion_proofs_are_the_published_ones(index: int, size: int, path: list[str]) -> None:
    assert [node.hex() for node in TREE.inclusion_proof(index, size)] == path
    nodes = [bytes.fromhex(node) for node in path]
    root = bytes.fromhex(ROOTS[size])
    assert verify_inclusion(hash_leaf(LEAVES[index]), index, size, nodes, root)


@pytest.mark.parametrize(("old", "size", "path"), CONSISTENCY)
def test_consistency_proofs_are_the_published_ones(old: int, size: int, path: list[str]) -> None:
    assert [node.hex() for node in TREE.consistency_proof(old, size)] == path
    nodes = [bytes.fromhex(node) for node in path]
    roots = bytes.fromhex(ROOTS[old]), bytes.fromhex(ROOTS[size])
    assert verify_consistency(old, roots[0], size, roots[1], nodes)


# --- the definition of RFC 6962, section 2.1, word by word ------------------------------------------------------


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def half(leaves: list[bytes]) -> int:
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return k


def tree_hash(leaves: list[bytes]) -> bytes:
    if len(leaves) < 2:
        return sha256(b"\0", *leaves) if leaves else sha256()
    k = half(leaves)
    return sha256(b"\1", tree_hash(leaves[:k]), tree_hash(leaves[k:]))


def audit_path(m: int, leaves: list[bytes]) -> list[bytes]:
    if len(leaves) == 1:
        return []
    k = half(leaves)
    if m < k:
        return [*audit_path(m, leaves[:k]), tree_hash(leaves[k:])]
    return [*audit_path(m - k, leaves[k:]), tree_hash(leaves[:k])]


def subproof(m: int, leaves: list[bytes], is_complete: bool) -> list[bytes]:
    if m == len(leaves):
        return [] if is_complete else [tree_hash(leaves)]
    k = half(leaves)
    if m <= k:
        return [*subproof(m, leaves[:k], is_complete), tree_hash(leaves[k:])]
    return [*subproof(m - k, leaves[k:], False), tree_hash(leaves[:k])]


leaf_lists = st.lists(st.binary(max_size=4), min_size=1, max_size=70)


@given(leaf_lists, st.data())
def test_root_and_proofs_follow_the_definition(leaves: list[bytes], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, len(leaves)))
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    tree = MerkleTree(map(hash_leaf, leaves))
    assert tree.root(size) == tree_hash(leaves[:size])
    assert tree.inclusion_proof(index, size) == audit_path(index, leaves[:size])
    assert tree.consistency_proof(old, size) == subproof(old, leaves[:size], True)


@given(leaf_lists, st.data())
def test_verification_accepts_proofs_of_the_definition_and_nothing_that_differs(
    leaves: list[bytes], data: st.DataObject
) -> None:
    size = len(leaves)
    index, old = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    root, old_root = tree_hash(leaves), tree_hash(leaves[:old])
    path, steps = audit_path(index, leaves), subproof(old, leaves, True)
    leaf = sha256(b"\0", leaves[index])
    assert verify_inclusion(leaf, index, size, path, root)
    assert verify_consistency(old, old_root, size, root, steps)
    other = sha256(b"other")
    assert not verify_inclusion(other, index, size, path, root)
    assert not verify_inclusion(leaf, index, size, path, other)
    assert not verify_inclusion(leaf, index, size, [*path, other], root)
    assert not verify_inclusion(leaf, size, size, path, root)
    assert not verify_consistency(old, other, size, root, steps)
    assert not verify_consistency(old, old_root, size, other, steps)
    assert not verify_consistency(old, old_root, size, root, [*steps, other])
    assert not verify_consistency(size + 1, root, size, root, steps)
    for proof, check in (
        (path, lambda changed: verify_inclusion(leaf, index, size, changed, root)),
        (steps, lambda changed: verify_consistency(old, old_root, size, root, changed)),
    ):
        if proof:
            place = data.draw(st.integers(0, len(proof) - 1))
            assert not check([*proof[:place], *proof[place + 1 :]])
            assert not check([*proof[:place], other, *proof[place + 1 :]])


@given(leaf_lists, leaf_lists)
def test_a_changed_leaf_makes_an_earlier_root_inconsistent(leaves: list[bytes], more: list[bytes]) -> None:
    changed = [leaves[0] + b"!", *leaves[1:], *more]
    tree = MerkleTree(map(hash_leaf, changed))
    old = len(leaves)
    assert not verify_consistency(old, tree_hash(leaves), tree.size, tree.root(), tree.consistency_proof(old))


@pytest.mark.parametrize("size", [-1, 9])
def test_a_tree_that_does_not_exist_is_refused(size: int) -> None:
    with pytest.raises(ValueError):
        TREE.root(size)
    with pytest.raises(ValueError):
        TREE.inclusion_proof(8)
    with pytest.raises(ValueError):
        TREE.consistency_proof(5, 4)
