"""Benchmarks: what is timed, how, and the records that every published number is read from.

`cases` says which points exist, `gate` compares tokens before anything is timed, `clock` is the
stopwatch, `baselines` builds the step-wise paths to compare with, `parts` says where a step's time
goes, `record` writes and checks the JSON lines, and `head` is `wts bench head`. `every`
is `wts bench all`, `placement` its sweep of placements, `predicted` and `cost_fit` hold the cost
model against records.

`serving` is `wts bench serving`: `serving_setting` says what is served (`geometry` makes models of
random weights), `serving_paths` with which head and what proves it (`null_head` is none),
`serving_run` starts engines and keeps what they give, each in a `serving_worker`, and
`serving_table` shows it.
"""
