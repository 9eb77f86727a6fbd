"""Convert a figure to inline SVG without style attributes, which the page's policy forbids.

Texts are paths, so a client's name never becomes markup. Comments, in which matplotlib repeats texts, are dropped.
Colours are presentation attributes, so the style sheet can map `[fill="#22262b"]` to another colour in dark mode.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.axes import Axes

from celm.report.formatting import printable_line
from celm.report.style import FILE_METADATA, figure_style, root_figure

_XLINK = "{http://www.w3.org/1999/xlink}"
_MIN_SCALE, _WIDTH_STEP, _MAX_MIN_WIDTH = 0.85, 80, 1120
"""On a small screen a wide figure shrinks to about `_MIN_SCALE`, then scrolls. Each step has a class in report.css."""

_FITS_PHONE = 520
"""A figure up to this width shrinks to a phone's width: small labels are better than a hidden end of a line."""


def inline_svg(axes: Axes, name: str, label: str) -> Markup:
    """Return the figure of `axes`. Its ids start with `name`, and `label` is its text alternative."""
    content = io.BytesIO()
    with figure_style():
        root_figure(axes).savefig(content, format="svg", metadata=FILE_METADATA["svg"], transparent=True)
    root = ElementTree.fromstring(content.getvalue())  # noqa: S314 - the bytes of our own figure
    for parent in list(root.iter()):
        for child in list(parent):
            if _local_name(child.tag) in ("metadata", "style"):
                parent.remove(child)
    referenced_ids = {
        target
        for element in root.iter()
        for value in element.attrib.values()
        for target in _references(value)
    }
    for element in root.iter():
        element.tag = _local_name(element.tag)
        _clean_element(element, name, referenced_ids)
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    min_width = min(_MAX_MIN_WIDTH, round(_MIN_SCALE * width * 4 / 3 / _WIDTH_STEP) * _WIDTH_STEP)
    if width * 4 / 3 <= _FITS_PHONE:
        min_width = min(min_width, 320)
    view_box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": view_box,
            "width": f"{width * 4 / 3:.0f}",
            "height": f"{height * 4 / 3:.0f}",
            "class": f"min-width-{min_width}",
            "role": "img",
            "aria-label": printable_line(label, max_length=600),
            "stroke-linejoin": "round",
            "stroke-linecap": "butt",
        }
    )
    # The serialiser escapes the label, the only text that comes from outside.
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704


def _clean_element(element: ElementTree.Element, name: str, referenced_ids: set[str]) -> None:
    """Convert styles to attributes and xlink to plain links, drop unused ids, and round paths to two decimals."""
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "style":
            for declaration in filter(None, (part.strip() for part in value.split(";"))):
                property_name, _, setting = declaration.partition(":")
                element.attrib[property_name.strip()] = _prefix_urls(setting.strip(), name)
        elif key == "id":
            if value in referenced_ids:
                element.attrib["id"] = f"{name}-{value}"
        elif key == f"{_XLINK}href" or key == "href":
            element.attrib["href"] = f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif key == "d":
            element.attrib[key] = re.sub(r"(\.\d\d)\d+", r"\1", value)
        elif "}" not in key:
            element.attrib[key] = _prefix_urls(value, name)


def _prefix_urls(value: str, name: str) -> str:
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", value)


def _references(value: str) -> list[str]:
    """Return the ids to which an attribute refers.

    >>> _references("#a"), _references("clip-path: url(#p1)"), _references("none")
    (['a'], ['p1'], [])
    """
    return [value[1:]] if value.startswith("#") else re.findall(r"url\(#([^)]+)\)", value)


def _local_name(tag: str) -> str:
    return tag.rpartition("}")[2]
