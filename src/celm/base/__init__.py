"""Foundations that every package may import.

- `errors`: `CelmError`, the one error that a user can fix, and `suggest_name`
- `text`: untrusted text made safe to print
- `files`, `json_files`: files that are never half written; tensors, JSON and JSON lines
- `locking`: one process at a time
- `state_serialisation`: states of rules and clients as JSON and tensors
- `randomness`: seeds as a function of (seed, purpose, round, client)
- `registry`: components chosen by name, with typed settings
- `lazy`: public names of a package, imported on first use
- `client_order`: the order in which clients are listed and summed
- `huge_pages`: large memory pages on Linux
- `processor`: checks for processor faults

Importing this package, or any module in it except `state_serialisation` and `processor`, does not import torch.
"""
