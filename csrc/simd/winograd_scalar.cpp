// Winograd's transforms at SIMD level scalar (setup.py gives this file its compiler flags).
#define FF_LEVEL scalar
#include "simd/winograd.inl"
