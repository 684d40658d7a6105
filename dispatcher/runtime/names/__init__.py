"""The demo: a small transformer that learns what languages call languages, territories, scripts and currencies.

text -> vocabulary -> packing -> jobs, each knows only those before it. The training templates start the jobs.
"""
