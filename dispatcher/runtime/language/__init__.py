"""A language model and its training, as one user of dispatcher.runtime.training: nothing there knows of tokens.

transformer   A small decoder-only model; attention: its masks and its KV cache.
tokens        Rows of tokens: windows of one long text, and what a model makes of them.
trainer       The trainer of a model that predicts next tokens.
"""
