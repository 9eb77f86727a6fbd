"""UCI Heart Disease (Janosi, Steinbrunn, Pfisterer, Detrano 1989): patients of four hospitals, in this package.

It is the data of Fed-Heart-Disease (FLamby, Ogier du Terrail et al. 2022), with features of our own:

- age, blood pressure, cholesterol, heart rate, ST depression and vessels, standardised by constants
- sex, blood sugar and angina as -1 or 1
- chest pain, ECG, slope and thallium scan as one column per value

A missing value is 0. Cholesterol and blood pressure of 0 count as missing, as all cholesterol of Switzerland.

The data are licensed under CC BY 4.0 (https://doi.org/10.24432/C52P4X). The investigators ask to be named: Andras
Janosi (Hungarian Institute of Cardiology, Budapest), William Steinbrunn (University Hospital, Zurich), Matthias
Pfisterer (University Hospital, Basel), Robert Detrano (V.A. Medical Center, Long Beach and Cleveland Clinic
Foundation).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from celm.base.errors import CelmError
from celm.data.dataset import Dataset, DatasetSource, Defaults, hold_out
from celm.data.dataset_info import DatasetInfo

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
_NUM_COLUMNS = 14
_MISSING = -9.0
_CONTINUOUS = {
    0: (53.5, 9.4),
    3: (132.3, 18.5),
    4: (246.8, 58.5),
    7: (137.5, 25.9),
    9: (0.88, 1.09),
    11: (0.67, 0.93),
}
"""Column to mean and standard deviation over all hospitals, as constants so that they never change."""
_ZERO_IS_MISSING = (3, 4)
_BINARY = (1, 5, 8)
_CATEGORICAL = {2: (1, 2, 3, 4), 6: (0, 1, 2), 10: (1, 2, 3), 12: (3, 6, 7)}
_NUM_FEATURES = len(_CONTINUOUS) + len(_BINARY) + sum(map(len, _CATEGORICAL.values()))


@dataclass(frozen=True)
class Heart(DatasetSource):
    """Heart disease in 4 hospitals (UCI), 22 features, 2 classes.

    There are 920 patients. The data come with celm.
    """

    grades: bool = False
    """Five grades in place of healthy and disease. The Hungarian hospital calls every disease grade 1."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", split="natural", rounds=30, lr=0.1)
    info: ClassVar[DatasetInfo] = DatasetInfo(
        name="heart",
        shape=(_NUM_FEATURES,),
        classes=2,
        licence="CC BY 4.0",
        counts=((736, 184),),
        clients=HOSPITALS,
    )

    def load(self) -> Dataset:
        tables = [_read_hospital(hospital) for hospital in HOSPITALS]
        hospital_of = np.repeat(np.arange(len(HOSPITALS)), [len(table) for table in tables])
        table = np.concatenate(tables)
        grades = table[:, -1].astype(np.int64)
        # A fifth of each grade of each hospital is for tests.
        train, test = hold_out(hospital_of * 5 + grades)
        labels = torch.from_numpy(grades if self.grades else (grades > 0).astype(np.int64))
        inputs = torch.from_numpy(_encode(table))
        return Dataset(
            name="heart",
            train_inputs=inputs[train],
            train_labels=labels[train],
            test_inputs=inputs[test],
            test_labels=labels[test],
            classes=("healthy", "grade 1", "grade 2", "grade 3", "grade 4")
            if self.grades
            else ("healthy", "disease"),
            client_ids=tuple(HOSPITALS[i] for i in hospital_of[train]),
        )


def _read_hospital(hospital: str) -> NDArray[np.float64]:
    """Return the rows of a hospital: 13 features and the grade."""
    file = files("celm.data").joinpath("bundled", "heart", f"processed.{hospital}.data")
    lines = file.read_text(encoding="utf-8").split()
    rows = [[_MISSING if text == "?" else float(text) for text in line.split(",")] for line in lines[1:]]
    if not rows or any(len(row) != _NUM_COLUMNS for row in rows):
        raise CelmError(
            f"{file} is damaged: a line does not have {_NUM_COLUMNS} values", "install celm again"
        )
    return np.array(rows)


def _encode(table: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the features `[n, 22]`; a missing value is 0."""
    columns = []
    for column, (mean, std) in _CONTINUOUS.items():
        values = table[:, column]
        is_missing = (values == _MISSING) | ((values == 0) & (column in _ZERO_IS_MISSING))
        columns.append(np.where(is_missing, 0.0, (values - mean) / std))
    for column in _BINARY:
        values = table[:, column]
        columns.append(np.where(values == _MISSING, 0.0, 2 * values - 1))
    for column, categories in _CATEGORICAL.items():
        columns += [(table[:, column] == category).astype(np.float64) for category in categories]
    return np.stack(columns, axis=1).astype(np.float32)
