"""Places where attempts run. base is the seam; each outlet is one small class with the same methods."""
