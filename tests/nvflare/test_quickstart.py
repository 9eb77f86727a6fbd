"""The example: an ordinary client script, and a diff that leads to the job as it is."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare-quickstart"


def test_its_client_does_not_know_celm() -> None:
    for name in ("client.py", "net.py"):
        assert "celm" not in (EXAMPLE / name).read_text()


def test_the_diff_of_its_readme_leads_to_the_job() -> None:
    block = re.search(r"```diff\n(.*?)```", (EXAMPLE / "README.md").read_text(), re.DOTALL)
    assert block is not None
    job = (EXAMPLE / "job.py").read_text().splitlines()
    changed = [line for line in block[1].splitlines() if not line.startswith(("---", "+++", "@@"))]
    assert all(line[1:] in job for line in changed if line.startswith(("+", " ")))
    assert not any(line[1:] in job for line in changed if line.startswith("-"))
