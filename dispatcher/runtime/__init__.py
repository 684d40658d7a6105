"""Code that runs inside jobs, the only code of the package that imports JAX.

text -> vocabulary -> packing -> model -> evaluation -> training, with adapters and weights beside them: each knows
only those before it. The training templates put them together.
"""
