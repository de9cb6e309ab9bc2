from bench.drawing import svg
from leveret.analytics.figures import Heat, Panel, Series, panels
from leveret.analytics.plots import plots


def test_logarithmic_axes_are_written_in_plain_numbers():
    """Powers of ten are numbers, not the markup that would set them as formulas, which is off because of names."""
    lines = panels(
        Panel("one in", "ms", [Series("a", [1, 10, 10_000], [0.02, 3, 500])], log_x=True, log_y=True)
    )
    cells = Heat("ms", [("2026-11-21 20:39:10", 0.1, 1.0, 1.0), ("2026-11-21 20:39:15", 1.0, 10.0, 1000.0)])
    drawn = svg(lines) + svg(cells)

    assert "mathdefault" not in drawn
    assert [] == [text for text in (">10,000<", ">0.1<", ">1,000<") if text not in drawn]


def test_an_axis_within_a_power_of_ten_has_steps():
    """An axis that shows at most one power of ten has other numbers beside it."""
    drawn = svg(panels(Panel("x", "ms", [Series("a", [1, 2], [11, 90])], log_y=True)))

    assert ">20<" in drawn
    assert ">50<" in drawn


def test_the_day_of_a_heat_map_is_reported_once():
    """Columns of one day show the time alone."""
    drawn = svg(Heat("ms", [("2026-11-21 20:39:10", 1.0, 2.0, 1.0), ("2026-11-21 20:39:15", 1.0, 2.0, 3.0)]))

    assert ">20:39:15<" in drawn
    assert ">2026-11-21, UTC<" in drawn


def test_lines_after_the_fourth_are_dashed():
    """On pages and in print: the colours of more than four lines are hard to tell from each other."""
    chart = panels(Panel("x", "y", [Series(str(number), [1, 2], [number, number]) for number in range(6)]))

    (plot,) = plots(chart)

    assert [None] * 4 + [{"dash": "dash"}] * 2 == [each.get("line") for each in plot["data"]]
    # Matplotlib's own line in the legend is dashed as well; grid lines are solid.
    assert 2 * 2 == svg(chart).count("stroke-dasharray")
