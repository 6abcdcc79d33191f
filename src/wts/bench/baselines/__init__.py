"""The step-wise paths that a walk is compared with, each as a call that a CUDA graph can capture.

Every factory takes the weights and the inputs of one walk and returns a call without arguments that
launches the K steps on the current stream and returns the tokens, int64 [B, K].
"""
