"""A figure as SVG inside a page: no style attributes (the page's policy forbids them), colours that CSS can change.

Texts are paths, so no name of a client becomes markup; comments, in which matplotlib repeats them, are dropped.
Colours stay presentation attributes: a style sheet may map `[fill="#22262b"]` to its own ink in dark mode.
"""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib.axes import Axes

from celm.report.style import METADATA, figure_of, look, plain

XLINK = "{http://www.w3.org/1999/xlink}"
KEPT_SCALE, STEP, WIDEST = 0.7, 160, 1120
"""On a small screen a figure shrinks to about this part of its size, then it scrolls: steps the style sheet has."""


def inline_svg(axes: Axes, name: str, label: str) -> Markup:
    """The figure of `axes`, its ids made the page's own by `name`, with `label` for those who do not see it."""
    content = io.BytesIO()
    with look():
        figure_of(axes).savefig(content, format="svg", metadata=METADATA["svg"], transparent=True)
    root = ElementTree.fromstring(content.getvalue())  # noqa: S314 - our own bytes, made the line before
    for parent in list(root.iter()):
        for child in list(parent):
            if local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    referred = {
        target for element in root.iter() for value in element.attrib.values() for target in targets(value)
    }
    for element in root.iter():
        element.tag = local(element.tag)
        rewrite(element, name, referred)
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    least = min(WIDEST, round(KEPT_SCALE * width * 4 / 3 / STEP) * STEP)
    view = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib.update(
        {
            "viewBox": view,
            "width": f"{width * 4 / 3:.0f}",
            "height": f"{height * 4 / 3:.0f}",
            "class": f"least-{least}",
            "role": "img",
            "aria-label": plain(label, longest=600),
            "stroke-linejoin": "round",
            "stroke-linecap": "butt",
        }
    )
    # Our own bytes throughout, and the serialiser escapes the one text that is not: the label.
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704


def rewrite(element: ElementTree.Element, name: str, referred: set[str]) -> None:
    """Style to attributes, xlink to plain, ids only where something refers to them, fewer decimals."""
    attributes = dict(element.attrib)
    element.attrib.clear()
    for key, value in attributes.items():
        if key == "style":
            for declaration in filter(None, (part.strip() for part in value.split(";"))):
                property_, _, setting = declaration.partition(":")
                element.attrib[property_.strip()] = own(setting.strip(), name)
        elif key == "id":
            if value in referred:
                element.attrib["id"] = f"{name}-{value}"
        elif key == f"{XLINK}href" or key == "href":
            element.attrib["href"] = f"#{name}-{value[1:]}" if value.startswith("#") else value
        elif key == "d":
            element.attrib[key] = re.sub(r"(\.\d\d)\d+", r"\1", value)
        elif "}" not in key:
            element.attrib[key] = own(value, name)


def own(value: str, name: str) -> str:
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", value)


def targets(value: str) -> list[str]:
    """What an attribute refers to within the file.

    >>> targets("#a"), targets("clip-path: url(#p1)"), targets("none")
    (['a'], ['p1'], [])
    """
    return [value[1:]] if value.startswith("#") else re.findall(r"url\(#([^)]+)\)", value)


def local(tag: str) -> str:
    return tag.rpartition("}")[2]
