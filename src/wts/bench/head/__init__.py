"""`wts bench head` and `wts bench all`: walks of a head beside step-wise execution.

`cases` says which points exist, `material` draws weights and inputs, `ours` makes our own walks and
compares their tokens before anything is timed, `theirs` calls the step-wise paths, `session` times
all of them in turns, `table` shows what was found and makes records of it. `run` measures what was
asked for, `every` all that figures need of one GPU, `placement` walks whose weights lie elsewhere.
`breakdown` says where a step's time goes.
"""
