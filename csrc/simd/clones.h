// FF_CLONES before a function compiles it once per SIMD level; the loader picks the best one that the processor has.
// For plain loops: where tiles or intrinsics differ by level, there is a table instead (simd.h). Contraction is off, so
// every clone gives the same bits.
#pragma once

// Levels are named by features, not by processors: GCC takes "arch=skylake-avx512" for that one model only.
#if FASTFED_X86 && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define FF_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#elif FASTFED_X86 && defined(__GNUC__) && !defined(__clang__)
#define FF_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FF_CLONES
#endif
