"""The paper as pure functions on tensors: probe, evidence, weights.

Beside them are the extensions, which they do not import: calibration, head evidence, class
holders, probe schedules and idle detection.
"""
