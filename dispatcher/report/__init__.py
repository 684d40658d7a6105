"""From records, entries and results to rows and tables.

Only `look` reads files; the rest is pure: the same snapshot gives the same rows, and the caller says what time it is.
"""
