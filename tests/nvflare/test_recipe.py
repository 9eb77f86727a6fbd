"""The job that the recipe writes, and the settings that it refuses before a job is sent."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'celm[nvflare]'")

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable

from celm.base.errors import CelmError
from celm.nvflare import ContributionController, ContributionRecipe
from celm.nvflare.controller import make_alerts
from celm.operations.alerts import Command, Webhook
from support.nvflare_job.net import Net

JOB = Path(__file__).parents[1] / "support" / "nvflare_job"


def recipe(**changes: Any) -> ContributionRecipe:
    usual: dict[str, Any] = {"model": Net(), "input_shape": (1, 8, 8), "classes": 10, "min_clients": 3}
    return ContributionRecipe(**{**usual, "train_script": str(JOB / "client.py"), "num_rounds": 7, **changes})


def controller_of(job: Path) -> dict[str, Any]:
    """Return the controller in the server's configuration of an exported job."""
    (config,) = job.rglob("config_fed_server.json")
    (workflow,) = json.loads(config.read_text())["workflows"]
    result: dict[str, Any] = workflow
    return result


def test_the_job_has_every_setting_that_differs_from_its_default(tmp_path: Path) -> None:
    options = {"rule_options": {"warmup": 4}, "seed": 7, "alerts": [{"url": "https://example.org/hook"}]}
    recipe(preset=None, folder="/srv/state", controller_options=options).export(str(tmp_path))
    workflow = controller_of(tmp_path)
    assert workflow["path"] == "celm.nvflare.controller.ContributionController"
    arguments = workflow["args"]
    assert {name: arguments[name] for name in options} == options
    assert arguments["preset"] is None
    assert (arguments["folder"], arguments["num_rounds"], arguments["min_clients"]) == ("/srv/state", 7, 3)
    ContributionController(**arguments)  # what NVFlare does on the server


def test_every_argument_of_the_controller_can_be_written_into_a_job() -> None:
    """NVFlare reads each argument from an attribute of its name."""
    controller = ContributionController((1, 8, 8), 10, 5)
    for name, parameter in inspect.signature(ContributionController).parameters.items():
        assert hasattr(controller, name)
        if parameter.default is not inspect.Parameter.empty:
            assert json.dumps(getattr(controller, name)) == json.dumps(parameter.default)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fraction_train": 0.0}, "fraction_train"),
        ({"train_timeout": 0}, "train_timeout"),
        ({"train_timeout": 1.5}, "train_timeout"),
        ({"rounds": 3}, "rounds"),
        ({"rule_options": {"warmupp": 3}}, "warmup"),
        ({"alerts": [{"address": "x"}]}, "is not an alert"),
        ({"alerts": [{"url": "x"}]}, "is not an address"),
    ],
)
def test_a_setting_that_the_server_would_refuse_is_refused_before_the_job_is_sent(
    options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(CelmError, match=reason):
        recipe(controller_options=options)


def test_a_folder_must_be_absolute() -> None:
    with pytest.raises(CelmError, match="absolute"):
        recipe(folder="state")


def test_an_unknown_rule_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(CelmError, match="'celm'"):
        recipe(rule="celmm")


def test_alerts_are_built_from_tables() -> None:
    alerts = make_alerts([{"url": "https://example.org/hook", "timeout": 2.0}, {"arguments": ["true"]}])
    assert alerts == [Webhook("https://example.org/hook", timeout=2.0), Command(["true"])]


def test_a_late_result_is_noted_and_not_used() -> None:
    controller = ContributionController((1, 8, 8), 10, 5)
    for _ in range(3):
        controller.process_result_of_unknown_task(
            Client("site-1", "token"), "train", "an earlier task", Shareable(), FLContext()
        )
    assert list(controller._late_results.values()) == ["site-1 answers no task of this round"]
