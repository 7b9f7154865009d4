// Winograd's transforms at SIMD level avx2 (setup.py gives this file its compiler flags).
#define FF_LEVEL avx2
#include "simd/winograd.inl"
