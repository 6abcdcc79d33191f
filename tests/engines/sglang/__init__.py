"""Tests of SGLang's plugin."""
