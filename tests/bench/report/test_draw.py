"""Figures come from records alone, and committed ones from the committed records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.report.results import H200, ROOT, lines_of, record, results, texts
from wts.bench.record import Record, read
from wts.bench.report.chip import footprint, placement
from wts.bench.report.cost_fit import errors
from wts.bench.report.draw import FIGURES, draw_all
from wts.bench.report.engine import gains
from wts.bench.report.heads import heads
from wts.bench.report.model import model
from wts.bench.report.points import Results, load
from wts.bench.report.predicted import mean_error, predictions
from wts.bench.report.walks import grid, slopes, timeline
from wts.kernels.resident.cost import Constants

pytest.importorskip("matplotlib")

COMMITTED = ROOT / "benchmarks" / "figures" / "h200"


@pytest.fixture(scope="module")
def committed() -> Results:
    return load(H200)


class TestFigures:
    @pytest.mark.parametrize("drawing", FIGURES, ids=lambda drawing: drawing.name)
    def test_without_records_nothing_is_drawn(self, drawing: Any) -> None:
        assert drawing.draw(results()) is None

    def test_timeline_says_entry_and_step(self) -> None:
        head = lines_of("wts", 16, 2) + lines_of("sglang", 10, 30)
        said = texts(timeline(results(head=head)))
        assert "entry 16.0 us, 2.00 us a step" in said
        assert "entry 10.0 us, 30.00 us a step" in said
        assert "no record of 'one walk, streaming' yet" in said

    def test_slopes_show_a_streaming_walk_where_there_is_one(self) -> None:
        head = lines_of("wts", 16, 2) + lines_of("wts_streaming", 8, 11)
        said = texts(slopes(results(head=head)))
        assert "one walk, streaming: 11.00 us a step" in said
        assert "no record" not in said

    def test_ratios_are_to_the_fastest_step_wise_path(self) -> None:
        head = [record(10.0), record(40.0, path="sglang"), record(30.0, path="step_torch")]
        figure = grid(results(head=head))
        assert figure is not None
        drawn = [list(line.get_ydata()) for line in figure.axes[1].lines]
        assert [3.0] in drawn
        assert [4.0] not in drawn

    def test_the_other_kernel_is_named_and_kept_to_its_gpu(self) -> None:
        head = [record(10.0), record(40.0, path="sglang")]
        here = results(head=head)
        assert "another run" in texts(grid(here))
        elsewhere = Results(gpu="h100", digest="d", records=here.records)
        assert "another run" not in texts(grid(elsewhere))

    def test_heads_split_a_step(self) -> None:
        head = [
            *lines_of("wts", 16, 3, head="rnn"),
            *lines_of("probe", 16, 2, head="rnn"),
            *lines_of("sglang", 10, 50, head="rnn"),
        ]
        figure = heads(results(head=head))
        assert "3.00 us, 1.50 x" in texts(figure)
        heights = [round(float(patch.get_height()), 6) for patch in figure.axes[1].patches]
        assert heights == [2.0, 1.0]

    def test_placement_marks_spills(self) -> None:
        def point(fragments: int, k: int, us: float, spilled: int) -> Record:
            return record(
                us,
                bench="placement",
                K=k,
                register_fragments=fragments,
                shared_fragments=72 - fragments,
                streamed_fragments=0,
                spill_bytes=spilled,
            )

        found = [point(32, k, 16 + 3 * k, 0) for k in (1, 16)]
        clean = placement(results(placement=found))
        assert "spills" not in texts(clean)
        found += [point(48, k, 16 + 2 * k, 8) for k in (1, 16)]
        figure = placement(results(placement=found))
        assert "spills" in texts(figure)
        curve, marks = figure.axes[0].lines[:2]
        assert list(curve.get_xdata()) == [4.0, 6.0]
        assert list(curve.get_ydata()) == pytest.approx([3.0, 2.0])
        assert (list(marks.get_xdata()), list(marks.get_ydata())) == ([6.0], pytest.approx([2.0]))

    def test_gains_and_the_heads_share_come_from_served_rounds(self) -> None:
        def served(path: str, round_us: float) -> Record:
            more = {"model": "m", "draft": "d", "block": 7, "accept": "simulated"}
            return record(
                1.0, bench="serving", path=path, concurrency=1, round_us=round_us, repeat=0,
                tokens_per_s=1.0, accepted_length=3.0, **more,
            )  # fmt: skip

        serving = [served("sglang", 100.0), served("wts", 80.0), served("null_head", 75.0)]
        figure = gains(results(serving=serving))
        assert [list(line.get_ydata()) for line in figure.axes[0].lines][:2] == [
            pytest.approx([25.0]),
            pytest.approx([100 / 3]),
        ]
        head = lines_of("sglang", 10, 30)
        shown = footprint(results(head=head, serving=serving))
        assert list(shown.axes[2].lines[0].get_ydata()) == pytest.approx([25.0])
        assert "no record yet" in texts(footprint(results(head=head)))

    def test_each_served_drafter_has_its_curves_of_the_newest_run(self) -> None:
        def served(run: str, draft: str, path: str, round_us: float) -> Record:
            more = {"model": "m", "draft": draft, "block": 16, "accept": "simulated"}
            return record(
                1.0, bench="serving", run_id=run, path=path, concurrency=1, round_us=round_us,
                repeat=0, tokens_per_s=1.0, accepted_length=3.0, **more,
            )  # fmt: skip

        serving = [
            *(served("1", "domino", "sglang", 100.0), served("1", "domino", "wts", 80.0)),
            *(served("2", "domino", "sglang", 100.0), served("2", "domino", "wts", 50.0)),
            *(served("3", "dspark", "sglang", 100.0), served("3", "dspark", "wts", 80.0)),
        ]
        lines = gains(results(serving=serving)).axes[0].lines
        assert [list(line.get_ydata()) for line in lines][:2] == [
            pytest.approx([100.0]),
            pytest.approx([25.0]),
        ]

    def test_the_newest_comparison_of_each_head_block_and_temperature_is_drawn(self) -> None:
        def compared(head: str, steps: int, difference: float, **changes: Any) -> Record:
            fields = {"domain": "all", "difference": difference, "commit": "0123456789"}
            interval = {"ci_low": difference - 0.1, "ci_high": difference + 0.1}
            return {"head": head, "K": steps, "T": 0.0, **fields, **interval, **changes}

        acceptance = [
            compared("rnn", 7, 0.5),
            compared("markov", 16, 0.3),
            compared("markov", 16, 0.4, domain="python"),
            compared("markov", 16, 0.6, states="equal"),
            compared("rnn", 7, -0.2),
        ]
        panel = gains(results(acceptance=acceptance)).axes[1]
        assert [text.get_text() for text in panel.get_yticklabels()] == [
            "rnn, K = 7, T = 0",
            "markov, K = 16, T = 0",
        ]
        middles = [float(bar.lines[0].get_xdata()[0]) for bar in panel.containers]
        assert middles == pytest.approx([-0.2, 0.3])

    def test_model_states_its_error(self, committed: Results) -> None:
        points = predictions(committed.records["head"])
        stated = f"{len(points)} complete calls: mean error {mean_error(points):.1%}"
        assert stated in texts(model(committed))


def test_what_is_missing_is_said_in_a_line(tmp_path: Path) -> None:
    said: list[str] = []
    written = draw_all(
        results(head=lines_of("wts", 16, 2) + lines_of("sglang", 10, 30)), tmp_path, say=said.append
    )
    assert {path.name for path in written} == {
        f"{name}.{suffix}"
        for name in ("footprint", "timeline", "slopes", "grid", "model")
        for suffix in ("svg", "png")
    }
    assert [line.split(":")[0] for line in said] == ["placement", "heads", "gains"]


class TestCommitted:
    def test_the_same_records_give_the_same_bytes(self, committed: Results, tmp_path: Path) -> None:
        first, second = (
            draw_all(committed, tmp_path / name, only=("timeline",), say=print)[0] for name in "ab"
        )
        assert first.read_bytes() == second.read_bytes()

    def test_figures_show_the_committed_records(self, committed: Results) -> None:
        drawn = sorted(COMMITTED.glob("*.svg"))
        assert drawn
        for path in drawn:
            assert f"{path.stem}, records {committed.digest}" in path.read_text(), (
                "the records changed: run `wts plot`"
            )

    def test_every_figure_that_can_be_drawn_is_committed(self, committed: Results) -> None:
        can = {drawing.name for drawing in FIGURES if drawing.draw(committed) is not None}
        assert {path.stem for path in COMMITTED.glob("*.svg")} == can

    def test_documents_show_every_committed_figure(self) -> None:
        text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
        shown = re.findall(r"!\[[^\]]+\]\(\.\./benchmarks/figures/h200/(\w+)\.svg\)", text)
        assert sorted(shown) == sorted(path.stem for path in COMMITTED.glob("*.svg"))

    def test_documents_state_the_models_error(self) -> None:
        text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
        (stated,) = re.findall(r"<!-- model:begin -->\n(.*)\n<!-- model:end -->", text, re.DOTALL)
        points = predictions(read(H200 / "head.jsonl"))
        assert stated == errors(points, Constants())
