"""The base of all schemas: a version in each file, and one-line errors for files that cannot be read.

`schema_version` changes when a key is renamed, removed or gets another meaning. A new optional key does not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from celm.base.errors import CelmError
from celm.base.files import dump_json, write_text
from celm.base.json_files import read_json, read_jsonl
from celm.base.text import printable, truncate

Fraction = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0)]
_MAX_ERROR_LENGTH = 300
"""Largest number of characters of what is wrong with a record, which may repeat any text of a file."""
_MAX_LISTED_ERRORS = 10_000
"""Largest number of errors to list for the first of them: pydantic takes more than a kilobyte for each."""


class Schema(BaseModel):
    """A part of a record."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False, extra="ignore")


class FileRecord(Schema):
    """A JSON file, or one line of a JSON-lines file."""

    reads_unversioned: ClassVar[bool] = False
    """Whether a file without `schema_version` is read as version 1: its keys have always been the same."""
    remedy: ClassVar[str]
    """What to do about a file of an older version."""

    schema_version: int = 1

    @classmethod
    def current_version(cls) -> int:
        version: int = cls.model_fields["schema_version"].default
        return version


_RecordT = TypeVar("_RecordT", bound=FileRecord)


def parse_record(
    record_type: type[_RecordT], value: Mapping[str, Any], path: Path, line: int | None = None
) -> _RecordT:
    """Return `value`, from the file `path`, as a record. Raise CelmError for another version or a damaged value."""
    if "schema_version" in value or not record_type.reads_unversioned:
        check_schema_version(
            value.get("schema_version"), record_type.current_version(), path, record_type.remedy
        )
    try:
        return record_type.model_validate(value)
    except ValidationError as error:
        location = "" if line is None else f"line {line}: "
        raise CelmError(f"{path} is damaged: {location}{_first_error(error)}") from error


def check_schema_version(version: object, current: int, path: Path, remedy: str) -> None:
    """Raise CelmError unless `version`, the `schema_version` of the file `path`, is the current one."""
    if version is None:
        raise CelmError(
            f"cannot read {path}: no schema_version, so an older development version of celm wrote it", remedy
        )
    if version != current or isinstance(version, bool):
        is_newer = isinstance(version, int) and version > current
        raise CelmError(
            f"cannot read {path}: schema_version {truncate(ascii(version), 40)}, this celm reads {current}",
            "install a newer celm" if is_newer else remedy,
        )


def make_line(record_type: type[FileRecord], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` with their schema version, as a line to append. Raise CelmError if they do not fit the schema."""
    line = dict(values)
    if "schema_version" not in line:
        line = {"schema_version": record_type.current_version(), **line}
    unknown = sorted(line.keys() - record_type.model_fields.keys())
    try:
        record_type.model_validate(line)
    except ValidationError as error:
        raise CelmError(f"cannot write {record_type.__name__}: {_first_error(error)}") from error
    if unknown:
        raise CelmError(f"cannot write {record_type.__name__}: unknown key '{unknown[0]}'")
    return line


def read_record(record_type: type[_RecordT], path: Path) -> _RecordT:
    return parse_record(record_type, read_json(path), path)


def write_record(path: Path, record: FileRecord) -> None:
    write_text(path, dump_json(record.model_dump(), indent=2) + "\n")


def read_lines(record_type: type[_RecordT], path: Path) -> list[_RecordT]:
    """Return the records of a JSON-lines file; none if there is no file. An incomplete last line does not count."""
    return [parse_record(record_type, line, path, number) for number, line in enumerate(read_jsonl(path), 1)]


def _first_error(error: ValidationError) -> str:
    if error.error_count() > _MAX_LISTED_ERRORS:
        return f"{error.error_count():,} values are invalid"
    first = error.errors()[0]
    location = ".".join(map(str, first["loc"]))
    text = (f"{location}: " if location else "") + first["msg"].removeprefix("Value error, ")
    return truncate(printable(text), _MAX_ERROR_LENGTH)
