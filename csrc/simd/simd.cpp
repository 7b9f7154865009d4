// Chooses the SIMD level once, at first use.
#include "simd/simd.h"

#include <cstdlib>
#include <stdexcept>

namespace fastfed {

namespace {

bool runs_scalar() { return true; }
#if FASTFED_X86
bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
bool runs_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("f16c");
}
#endif

struct Level {
  const char* name;
  bool (*runs_here)();
};
#define FF_LEVEL_ROW(level, nothing) {#level, runs_##level},
constexpr Level kLevels[] = {FF_LEVELS(FF_LEVEL_ROW, )};
#undef FF_LEVEL_ROW
constexpr int kCount = int(sizeof(kLevels) / sizeof(Level));

int asked_level(const std::string& name) {
  for (int level = 0; level < kCount; ++level) {
    if (name != kLevels[level].name) continue;
    if (!kLevels[level].runs_here()) throw std::runtime_error("FASTFED_SIMD: this processor has no " + name);
    return level;
  }
  std::string known;
  for (const Level& level : kLevels) known += std::string(known.empty() ? "" : ", ") + level.name;
  throw std::runtime_error("FASTFED_SIMD: must be one of " + known + ", got '" + name + "'");
}

int choose() {
  const char* asked = std::getenv("FASTFED_SIMD");
  if (asked && *asked) return asked_level(asked);
  int best = 0;
  for (int level = 0; level < kCount; ++level)
    if (kLevels[level].runs_here()) best = level;
  return best;
}

}  // namespace

int simd_level() {
  static const int level = choose();
  return level;
}

std::vector<std::string> compiled_levels() {
  std::vector<std::string> names;
  for (const Level& level : kLevels) names.push_back(level.name);
  return names;
}

FF_BY_LEVEL(VectorLoops<float>, float_vector_loops)
FF_BY_LEVEL(VectorLoops<double>, double_vector_loops)

template <> const VectorLoops<float>& vector_loops<float>() { return float_vector_loops_in_use(); }
template <> const VectorLoops<double>& vector_loops<double>() { return double_vector_loops_in_use(); }

}  // namespace fastfed
