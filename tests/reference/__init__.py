"""Readable definitions of the compiled kernels and of the SQL steps, which must agree with them."""
