"""Pictures of results: bars with spread, heat maps, curves over steps.

Every picture says how many of the jobs it shows (n of N), and draws what is missing. `canvas` has what all pictures
have in common, the others draw. matplotlib is imported there alone, and none of its global state or of the user's
settings is used: the same results make the same file.
"""
