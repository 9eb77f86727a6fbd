"""Signed heads of a federation's record: what a member needs to hold the server to what it once said.

leaves      each line of rounds.jsonl as leaves of a Merkle tree: one public, one for each client
keys        Ed25519 keys as PEM files
envelope    DSSE envelopes around in-toto statements
heads       the statements: a head of the record, and a change of the key
trust       which keys a member's key vouches for
head_log    heads.jsonl of a state folder
proofs      files that a member checks with the public key alone
kept_heads  the heads that a member keeps, and what contradicts them
"""
