"""The plugin that lets SGLang's drafters walk: DSpark heads and the Domino rollout.

Nothing is imported here. SGLang names `wts.engines.sglang.plugin:register`, which imports what it
needs.
"""
