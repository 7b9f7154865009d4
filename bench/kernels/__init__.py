"""`fastfed bench kernels`: every op beside its peers, and what the Triton kernels move."""
