"""Data, model and training with NumPy alone: a process with PyTorch would take 245 MB."""

from pathlib import Path

import numpy as np

CLASSES, PIXELS, CLASSES_PER_MEMBER, SAMPLES = 10, 784, 3, 300
_SIGNAL = 0.08
"""Length of a class mean per pixel; noise has standard deviation 1."""


def draw_samples(classes: list[int], number: int, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs `[number, 784]` and labels: each class has a mean image of its own, plus noise."""
    means = np.random.default_rng(0).normal(size=(CLASSES, PIXELS))
    generator = np.random.default_rng(seed)
    labels = generator.choice(classes, number)
    inputs = _SIGNAL * means[labels] + generator.normal(size=(number, PIXELS))
    return inputs.astype(np.float32), labels


def member_data(partition: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples of a member, which holds three of the ten classes."""
    classes = [(partition + 3 * offset) % CLASSES for offset in range(CLASSES_PER_MEMBER)]
    return draw_samples(classes, SAMPLES, [seed, partition])


def train(arrays: list[np.ndarray], inputs: np.ndarray, labels: np.ndarray, seed: list[int]) -> None:
    """Train a ReLU network of three layers in place: one epoch of SGD (0.05, batch 32)."""
    w1, b1, w2, b2, w3, b3 = arrays
    order = np.random.default_rng(seed).permutation(len(labels))
    for first in range(0, len(order), 32):
        rows = order[first : first + 32]
        x = inputs[rows]
        h1 = np.maximum(x @ w1.T + b1, 0)
        h2 = np.maximum(h1 @ w2.T + b2, 0)
        logits = h2 @ w3.T + b3
        d3 = np.exp(logits - logits.max(axis=1, keepdims=True))
        d3 /= d3.sum(axis=1, keepdims=True)
        d3[np.arange(len(rows)), labels[rows]] -= 1
        d3 /= len(rows)
        d2 = (d3 @ w3) * (h2 > 0)
        d1 = (d2 @ w2) * (h1 > 0)
        for weight, bias, delta, source in ((w1, b1, d1, x), (w2, b2, d2, h1), (w3, b3, d3, h2)):
            weight -= 0.05 * delta.T @ source
            bias -= 0.05 * delta.sum(axis=0)


def peak_megabytes() -> float:
    """Return the peak memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not report the peak memory of a process")
