"""The results of jobs as rows and as frames.

`rows` is what `Workspace.results` returns, `reading` reads it, `columns` decides what kind of values a column has, and
`frames` makes frames of columns. pandas and polars are imported there alone, when they are used.
"""
