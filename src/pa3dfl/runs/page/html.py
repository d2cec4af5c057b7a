"""One file that opens offline: headline, charts, library and data; the last two are compressed."""

import base64
import json
import shlex
import time
import zlib
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from importlib import resources
from string import Template
from typing import Any

import yaml

from pa3dfl.runs.page.figures import NAMES, figures
from pa3dfl.runs.page.terms import config_hash, terms, titled
from pa3dfl.runs.rundata import RunData

RELOAD_SECONDS = 20


def page(runs: Sequence[RunData], shown: dict[str, Any], headline: Sequence[str], running: bool) -> str:
    script, divs = skeleton()
    methods = dict.fromkeys(titled(run) for run in runs)
    data = sorted({run["data"] for run in shown["runs"]})
    title = f"{', '.join(methods)} on {', '.join(data)}"
    facts = {"written": time.time(), "running": running, "reload": RELOAD_SECONDS}
    return Template(asset("page.html")).substitute(
        divs,
        title=escape(title if len(title) < 200 else title[:197] + "…"),
        style=asset("page.css"),
        headline="".join(f'<p class="headline">{escape(text)}</p>' for text in headline),
        written=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(facts["written"])),
        foot=foot(runs, shown["runs"]),
        data=deflated(json.dumps(shown | facts, separators=(",", ":"))),
        library=library(),
        glue=deflated("\n".join(['Bokeh.set_log_level("error");', script, asset("tables.js"), asset("page.js")])),
    )


@lru_cache(maxsize=1)
def skeleton() -> tuple[str, dict[str, str]]:
    """The charts, the same in every page: a script, and an element for each."""
    from bokeh.embed import components

    script, divs = components(figures(), wrap_script=False)
    return script, dict(zip(NAMES, divs, strict=True))


@lru_cache(maxsize=1)
def library() -> str:
    """Bokeh's core alone: its widgets, tables and WebGL are not used."""
    from bokeh.resources import Resources

    return deflated(Resources(mode="inline", components=["bokeh"]).js_raw[0])


def deflated(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


@lru_cache(maxsize=8)
def asset(name: str) -> str:
    return (resources.files("pa3dfl.runs.page") / name).read_text("utf-8")


def foot(runs: Sequence[RunData], shown: Sequence[dict[str, Any]]) -> str:
    """Everything that is needed to repeat the runs."""
    parts = ["<h2>How to make it again</h2>"]
    for note in [*terms(runs, [of_run["method"] for of_run in shown]), *notes(shown)]:
        parts.append(f"<p>{escape(note)}</p>")
    for run, of_run in zip(runs, shown, strict=True):
        made = run.about | (run.summary or {})
        facts = {
            "seed": run.config.get("seed"),
            "hash of the configuration": made.get("config_hash", config_hash(run.config)),
            "commit": made.get("commit"),
            "pa3dfl": made.get("version"),
            "PyTorch": made.get("torch"),
            "device": made.get("device"),
        }
        said = "; ".join(f"{k} {v}" for k, v in facts.items() if v is not None)
        command = (
            f"pa3dfl run {shlex.quote(str(run.path / 'config.yaml'))} --out {shlex.quote(str(run.path) + '-again')}"
        )
        parts.append(
            f"<details><summary>{escape(of_run['method'])}, {escape(said)}</summary>"
            f"<pre>{escape(command)}</pre><pre>{escape(yaml.safe_dump(run.config, sort_keys=False))}</pre></details>"
        )
    return "".join(parts)


def notes(shown: Sequence[dict[str, Any]]) -> list[str]:
    """What the numbers are, and what was left out."""
    found = [
        "Accuracy is each client's own, on its own test data. adapted: the model a client receives, after one more "
        "local training; received: without it; kept: what its last participation left."
    ]
    for run in shown:
        if (n := len(run["trained"])) < run["everybody"]:
            found.append(f"{run['method']}: {n:,} of {run['everybody']:,} clients are shown, drawn at random.")
        elif above_its_curve(run):
            found.append(
                f"{run['method']}: each client keeps the model of its own best evaluation, so that the mean over "
                "clients is above the learning curve."
            )
        if run["every"] > 1:
            found.append(f"{run['method']}: one in {run['every']} of the kept evaluations is shown.")
        if (kept := str(run["about"].get("evaluations_kept", "all"))) != "all":
            found.append(f"{run['method']}: the run kept {kept.replace('every', 'one in')} of its evaluations.")
    return list(dict.fromkeys(found))


def above_its_curve(run: dict[str, Any]) -> bool:
    """Whether clients are shown at evaluations of their own rather than at one of all."""
    chosen = [v for v in run["chosen"][run["tested"]] if v is not None]
    curve = [v for v in run["curve"][run["tested"]] if v is not None]
    return bool(chosen and curve) and sum(chosen) / len(chosen) > max(curve) + 1  # in hundredths of a percent
