"""The lab: trains a small target and its drafters, and asks what int8 does to them.

It is no part of the package: it uses `wts` as any user would. lab/README.md says how to run it.
"""
