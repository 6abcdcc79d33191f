"""A report in words."""

from __future__ import annotations

from wts.fidelity.summary import summary


def test_a_report_in_two_lines() -> None:
    steps = {
        "num_steps": 40,
        "flip_rate": {"int8": 0.025, "e4m3": 0.1},
        "flips_where_decided": 3,
    }
    report = {"weights": {"error": {"int8": 0.005, "e4m3": 0.02}}, "steps": steps}
    rows, tokens = summary(report)
    assert "0.50% in int8, 2.00% in E4M3" in rows
    assert "40 steps: 2.50% by int8, 10.00% by E4M3; 3 by int8 beyond its bound" in tokens
    none = summary({**report, "steps": {"num_steps": 0}})
    assert none == (rows, "no step that the head has a part in")
