"""A dataset of the Hugging Face hub: images, texts or a table, as parquet files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from celm.base.errors import CelmError
from celm.base.files import os_errors_as_celm_error
from celm.data.dataset import Dataset, DatasetSource, Defaults
from celm.data.files.ensure import fetch_parquet_files
from celm.data.files.locate import data_root
from celm.data.files.parquet import has_image_column
from celm.data.sources.image_folder import ImageFolder
from celm.data.sources.table import Table

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPOSITORY = re.compile(rf"{_NAME}/{_NAME}")


@dataclass(frozen=True)
class HubDataset(DatasetSource):
    """Images, texts or a table of the Hugging Face hub (hf:NAME).

    The files are downloaded once, to `hf/OWNER/NAME` below `CELM_DATA`. Images have the columns `image` and `label`; a
    table has `label` and features, or texts in `text_column`. A column `client` names the clients of the natural split.
    """

    repo: str
    """OWNER/NAME."""
    revision: str | None = None
    """Branch, tag or commit. None: the newest, at the time of the download."""
    subset: str | None = None
    """Folder of the files, if the repository has several, such as `plain_text`."""
    label_column: str = "label"
    """Column with the class, for tables and texts."""
    owner_column: str = "client"
    """Column with the client of each row, for the `natural` split."""
    size: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Side to which images are resized, in pixels. None: all images must have the same size."""
    grayscale: bool = False
    """Convert images to one channel instead of three."""
    text_column: str | None = None
    """Column with the texts to classify, for a model `hf:NAME`. None: the inputs are images or features."""
    tokenizer: str | None = None
    """Folder or hub name of the tokenizer of `text_column`; by default that of the model."""
    max_tokens: Annotated[int, Field(ge=1)] = 128
    """Largest number of tokens of a text. A longer text loses its end."""

    defaults: ClassVar[Defaults] = Defaults(model="mlp", rounds=100)

    def load(self) -> Dataset:
        folder = self._select_folder(self._ensure_files())
        first = next(path for path in sorted(folder.rglob("*.parquet")))
        if self.text_column is None and has_image_column(first):
            data = ImageFolder(
                str(folder), size=self.size, grayscale=self.grayscale, owner_column=self.owner_column
            ).load()
        else:
            data = Table(
                str(folder),
                label_column=self.label_column,
                owner_column=self.owner_column,
                text_column=self.text_column,
                tokenizer=self.tokenizer,
                max_tokens=self.max_tokens,
            ).load()
        return replace(data, name="hf")

    def _ensure_files(self) -> Path:
        """Return the folder of the repository's files; download them if they are missing."""
        if not _REPOSITORY.fullmatch(self.repo):
            raise CelmError(
                f"dataset.repo: '{self.repo}' is not OWNER/NAME", "as in --dataset hf:ylecun/mnist"
            )
        if self.revision is not None and not re.fullmatch(_NAME, self.revision):
            raise CelmError(f"dataset.revision: '{self.revision}' is not a branch, tag or commit")
        name = self.repo if self.revision is None else f"{self.repo}@{self.revision}"
        folder = data_root() / "hf" / name
        with os_errors_as_celm_error(folder, "read"):
            is_present = folder.is_dir() and any(folder.rglob("*.parquet"))
        if not is_present:
            temporary = folder.with_name(f"{folder.name}.part")
            fetch_parquet_files(self.repo, temporary, self.revision)
            with os_errors_as_celm_error(folder, "write to"):
                if not any(temporary.rglob("*.parquet")):
                    raise CelmError(f"dataset 'hf:{self.repo}' has no parquet files")
                temporary.replace(folder)
        return folder

    def _select_folder(self, folder: Path) -> Path:
        """Return the folder of the files: `subset`, or the only one."""
        parents = sorted({path.parent for path in folder.rglob("*.parquet")})
        names = {str(parent.relative_to(folder)): parent for parent in parents}
        if self.subset is None and len(names) == 1:
            return parents[0]
        if self.subset in names:
            return names[self.subset]
        listed = ", ".join(list(names)[:10])
        raise CelmError(
            f"dataset 'hf:{self.repo}' has the folders {listed}", "set dataset.subset to one of them"
        )
