"""The charts, made with Bokeh. They hold no data: `page.js` fills their sources when something is chosen.

All charts of clients share the source `clients`, so that Bokeh links selections in them;
`active` marks the client under the pointer in each.
"""

from typing import Any

import numpy as np
from bokeh.models import (
    BasicTicker,
    BoxSelectTool,
    ColumnDataSource,
    CustomJS,
    HoverTool,
    LinearColorMapper,
    Range1d,
    TapTool,
)
from bokeh.palettes import Cividis256
from bokeh.plotting import figure

GROUPS = 10
CLIENT = (
    "id",
    "r",
    "acc",
    "alpha",
    "loss",
    "ex",
    "ey",
    "rank",
    "colour",
    "fill",
    "mark",
    *(f"c{k}" for k in range(GROUPS)),
)
HATCHES = ("blank", "right_diagonal_line", "dot")
NAMES = ("curves", "dots", "labels", "alpha", "map", "heat", "tau", "timeline", "own")


def source(name: str, *columns: str) -> ColumnDataSource:
    return ColumnDataSource({c: [] for c in columns}, name=name)


def plot(name: str, x: str, y: str, height: int = 300, **given: Any) -> Any:
    fig = figure(
        name=name, min_height=height, sizing_mode="stretch_both", tools="", toolbar_location=None, x_axis_label=x,
        y_axis_label=y, output_backend="canvas", background_fill_alpha=0, border_fill_alpha=0, outline_line_alpha=0,
        min_border_right=12, **given,
    )  # fmt: skip
    fig.toolbar.logo = None
    for axis in fig.axis:
        axis.axis_label_text_font_style = "normal"
        axis.minor_tick_line_alpha = 0
    if x == "round":
        fig.xaxis.ticker = BasicTicker(min_interval=1)
    if y == "client":
        fig.yaxis.ticker = BasicTicker(min_interval=1)
    return fig


def figures() -> list[Any]:
    clients, active = source("clients", *CLIENT), source("active", *CLIENT)
    # The method, its colour and dash, points and the band over seeds around them.
    lines = source("lines", "xs", "ys", "name", "colour", "dash", "width")
    figs = [curves(lines)]
    for name, x, y, fields in (
        ("dots", "capacity (% of the full model)", "test accuracy (%)", ("r", "acc")),
        ("alpha", "capacity (% of the full model)", "chosen α", ("r", "alpha")),
        ("map", "first direction", "second direction", ("ex", "ey")),
    ):
        # Capacities are always shares of the full model; without a range, equal ones would be drawn at 99 to 101%.
        fig = plot(name, x, y)
        if name != "map":
            fig.x_range = Range1d(start=-3, end=103)
        dots = fig.scatter(
            *fields, source=clients, marker="mark", size=9, fill_color="fill", line_color="colour",
            line_width=1.5, alpha=0.8, nonselection_alpha=0.15, selection_alpha=1,
        )  # fmt: skip
        ring(fig, active, *fields)
        clickable(fig, [dots])
        fig.add_tools(BoxSelectTool(renderers=[dots]))
        fig.toolbar.active_drag = None
        figs.append(fig)
    figs += [labels(clients, active), heat(), *over_rounds(), timeline()]
    return sorted(figs, key=lambda fig: NAMES.index(fig.name))


def ring(fig: Any, active: ColumnDataSource, x: str, y: str) -> None:
    fig.scatter(x, y, source=active, size=18, fill_alpha=0, line_width=3, line_color="#E6007E", tags=["ring"])


def clickable(fig: Any, renderers: list[Any]) -> None:
    """Under the pointer: `hovered` in page.js. A click selects, in all charts of the source."""
    code = "window.pa3dfl?.hovered(cb_data.index.indices, this)"
    fig.add_tools(HoverTool(renderers=renderers, tooltips=None, callback=CustomJS(code=code)))
    fig.add_tools(TapTool(renderers=renderers))


def curves(lines: ColumnDataSource) -> Any:
    fig = plot("curves", "round", "mean test accuracy (%)", 360)
    fig.patches("xs", "ys", source=source("bands", "xs", "ys", "colour"), color="colour", alpha=0.18, line_alpha=0)
    drawn = fig.multi_line(
        "xs", "ys", source=lines, line_color="colour", line_dash="dash", line_width="width", hover_line_width=5
    )
    points = source("points", "x", "y", "size", "name", "colour", "marker", "of", "shown")
    dots = fig.scatter("x", "y", source=points, color="colour", marker="marker", size="size", hit_dilation=3)
    fig.add_tools(HoverTool(renderers=[drawn], tooltips=None))
    told = [("method", "@name"), ("test accuracy", "@y{0.0} %"), ("@of", "@shown")]
    fig.add_tools(HoverTool(renderers=[dots], tooltips=told))
    return fig


def labels(clients: ColumnDataSource, active: ColumnDataSource) -> Any:
    fig = plot("labels", "clients, by main label", "share of its rows (%)", y_range=Range1d(start=0, end=100))
    stack = [f"c{k}" for k in range(GROUPS)]
    bars = fig.vbar_stack(
        stack, x="rank", width=0.9, source=clients, color=["#999999"] * GROUPS, line_color=None,
        hatch_pattern=[HATCHES[k % len(HATCHES)] for k in range(GROUPS)], hatch_scale=8, hatch_weight=1.2,
        nonselection_alpha=0.2, selection_alpha=1, name=stack,
    )  # fmt: skip
    fig.vbar(x="rank", top=100, width=1, source=active, fill_alpha=0, line_width=3, line_color="#E6007E")
    clickable(fig, bars)
    fig.xaxis.major_label_text_font_size = "0px"
    fig.xgrid.visible = False
    return fig


def heat() -> Any:
    fig = plot("heat", "client whose knowledge is used", "client that receives", 380, x_range=Range1d(start=0, end=1),
               y_range=Range1d(start=1, end=0))  # fmt: skip
    colours = LinearColorMapper(palette=Cividis256, low=0, high=1, name="heat-colours")
    blank = {"image": [np.zeros((1, 1), np.float32)], "x": [0], "y": [0], "dw": [1], "dh": [1]}
    matrix = ColumnDataSource(blank, name="matrix")
    image = fig.image("image", "x", "y", "dw", "dh", source=matrix, color_mapper=colours)
    fig.add_layout(image.construct_color_bar(width=10, padding=4, title=None), "right")
    cross = source("cross", "x", "y", "w", "h")
    fig.rect("x", "y", "w", "h", source=cross, fill_alpha=0, line_width=2, line_color="#E6007E")
    for event, what in (("mousemove", "hovered"), ("tap", "picked")):
        code = f"window.pa3dfl?.on_matrix('{what}', cb_obj.x, cb_obj.y)"
        fig.js_on_event(event, CustomJS(code=code))
    fig.grid.visible = False
    for axis in fig.axis:
        axis.major_label_text_font_size = "0px"
        axis.major_tick_line_alpha = 0
    return fig


def over_rounds() -> list[Any]:
    tau = plot("tau", "round", "temperature τ")
    drawn = tau.multi_line("xs", "ys", source=source("taus", "xs", "ys", "name", "colour", "dash"), line_width=2,
                           line_color="colour", line_dash="dash", hover_line_width=5)  # fmt: skip
    tau.add_tools(HoverTool(renderers=[drawn], tooltips=[("layer", "@name"), ("τ", "$y{0.000}"), ("round", "$x{0}")]))
    own = plot("own", "round", "test accuracy (%)", 260)
    drawn = own.multi_line("xs", "ys", source=source("own-lines", "xs", "ys", "name", "colour", "dash"), line_width=2,
                           line_color="colour", line_dash="dash", hover_line_width=5)  # fmt: skip
    own.add_tools(HoverTool(renderers=[drawn], tooltips=[("method", "@name"), ("accuracy", "$y{0} %")]))
    return [tau, own]


def timeline() -> Any:
    fig = plot("timeline", "round", "client", x_range=Range1d(start=0, end=1))
    events = source("events", "x", "y", "who", "marker", "size", "colour", "kind", "reason")
    dots = fig.scatter("x", "y", source=events, marker="marker", color="colour", size="size", line_width=2)
    ring(fig, source("marked", "x", "y"), "x", "y")
    told = [("client", "@who"), ("round", "@x"), ("", "@kind"), ("", "@reason")]
    code = "window.pa3dfl?.on_event(cb_data.index.indices)"
    fig.add_tools(HoverTool(renderers=[dots], tooltips=told, callback=CustomJS(code=code)))
    fig.js_on_event("tap", CustomJS(code="window.pa3dfl?.on_timeline(cb_obj.y)"))
    return fig
