"""Figures of measured walks: from JSON lines to SVG and PNG.

`points` reads records, `draw` is `wts plot`, the others draw: `chip` what fits where, `walks`
complete calls of Markov heads, `heads` all serial heads, `model` the cost model beside
measurements, `engine` a server. Nothing is measured here, and nothing is drawn that no record says.
"""
