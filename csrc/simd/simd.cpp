// Chooses the SIMD level once, at first use.
#include "simd/simd.h"

#include <cstdlib>
#include <stdexcept>

namespace fastfed {

#define FF_DECLARE(level)                      \
  const Blocks<float>& float_blocks_##level(); \
  const Blocks<double>& double_blocks_##level();
FF_DECLARE(scalar)
#if FASTFED_X86
FF_DECLARE(avx2)
FF_DECLARE(avx512)
#endif

namespace {

struct Level {
  const char* name;
  bool (*runs_here)();
  const Blocks<float>& (*floats)();
  const Blocks<double>& (*doubles)();
};

const std::vector<Level>& levels() {  // slowest first
  static const std::vector<Level> all = {
      {"scalar", [] { return true; }, float_blocks_scalar, double_blocks_scalar},
#if FASTFED_X86
      {"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }, float_blocks_avx2,
       double_blocks_avx2},
      {"avx512",
       [] {
         return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                __builtin_cpu_supports("f16c");
       },
       float_blocks_avx512, double_blocks_avx512},
#endif
  };
  return all;
}

const Level& asked_level(const std::string& name) {
  for (const Level& level : levels()) {
    if (name != level.name) continue;
    if (!level.runs_here()) throw std::runtime_error("FASTFED_SIMD: this processor has no " + name);
    return level;
  }
  std::string known;
  for (const Level& level : levels()) known += std::string(known.empty() ? "" : ", ") + level.name;
  throw std::runtime_error("FASTFED_SIMD: must be one of " + known + ", got '" + name + "'");
}

const Level& choose() {
  const char* asked = std::getenv("FASTFED_SIMD");
  if (asked && *asked) return asked_level(asked);
  const Level* best = &levels().front();
  for (const Level& level : levels())
    if (level.runs_here()) best = &level;
  return *best;
}

const Level& chosen() {
  static const Level& level = choose();
  return level;
}

}  // namespace

template <> const Blocks<float>& blocks<float>() {
  static const Blocks<float>& table = chosen().floats();
  return table;
}

template <> const Blocks<double>& blocks<double>() {
  static const Blocks<double>& table = chosen().doubles();
  return table;
}

std::vector<std::string> compiled_levels() {
  std::vector<std::string> names;
  for (const Level& level : levels()) names.push_back(level.name);
  return names;
}

}  // namespace fastfed
