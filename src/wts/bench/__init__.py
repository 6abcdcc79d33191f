"""Benchmarks: what is timed, how, and the records that every published number is read from.

`inputs` draws heads and what they walk on, `compare` compares tokens before anything is timed,
`clock` is the stopwatch, `baselines` has the step-wise paths to compare with, `record` writes and
checks the JSON lines. `head` is `wts bench head` and `wts bench all`, `serving` is `wts bench
serving`, and `report` makes tables and figures of the records.
"""
