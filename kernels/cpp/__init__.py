"""The C++ backend: SIMD loops and threads, one call into ``fastfed._core`` per op."""
