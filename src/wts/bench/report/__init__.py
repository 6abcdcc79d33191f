"""Tables and figures of measured numbers: from JSON lines to Markdown, SVG and PNG.

`points` reads records, `draw` is `wts plot`, the others draw: `chip` what fits where, `walks`
complete calls of Markov heads, `heads` all serial heads, `model` the cost model beside
measurements, `engine` a server; `style` has their colours and titles, `rival` another kernel's
times. `summary` writes the tables of documents. `predicted` and `cost_fit` hold the cost model
against records. Nothing is measured here, and nothing is drawn that no record says.
"""
