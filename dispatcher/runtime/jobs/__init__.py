"""The job classes, each with one concern, and the package's own jobs, which `registry` finds by key.

A job class for users goes into a module of its own here, inherits from the first class that does what it needs, and is
exported by `dispatcher.runtime`. A job of one project belongs into the `jobs/` folder of its workspace instead, like
those of examples/names.
"""
