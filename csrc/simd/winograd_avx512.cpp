// Winograd's transforms at SIMD level avx512 (setup.py gives this file its compiler flags).
#define FF_LEVEL avx512
#include "simd/winograd.inl"
