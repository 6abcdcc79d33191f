"""`wts bench serving`: rounds of an SGLang server, with and without walks.

`setting` says what is served (`models` makes models of random weights, `prompts` reads or draws
requests), `paths` with which head and what proves it (`null_head` is none, `greedy_only` a switch
for machines without flashinfer), `starts` runs engines side by side, each in a `worker`, `session`
keeps what they give, `texts` compares what they said, `run` does all of it in turns, and `table`
shows it.
"""
