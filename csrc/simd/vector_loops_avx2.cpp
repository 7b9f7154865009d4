// The inner loops at SIMD level avx2 (setup.py gives this file its compiler flags).
#define FF_LEVEL avx2
#include "simd/vector_loops.inl"
