"""Benchmarks: what is timed, how, and the records that every published number is read from.

`cases` says which points exist, `gate` compares tokens before anything is timed, `clock` is the
stopwatch, `baselines` builds the step-wise paths to compare with, `parts` says where a step's time
goes, `record` writes and checks the JSON lines, and `head` is `wts bench head`.
"""
