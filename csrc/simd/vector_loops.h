// The inner loops of the CPU backend: straight runs over short spans of packed vectors, without threads or policy.
//
// Each SIMD level compiles vector_loops.inl once into a table of these functions; simd.h picks the table at run time.
// Every level gives the same bits: elementwise arithmetic is IEEE without contraction, and sums run in 16 fixed lanes.
#pragma once

#include <cstdint>

#include "philox.h"
#include "rules.h"

namespace fastfed {

using Half = std::uint16_t;  // the bits of a bfloat16 or float16

// What floats are sorted as: whole numbers as wide as they are.
template <class T> struct SortKeyOf {
  using type = std::int32_t;
};
template <> struct SortKeyOf<double> {
  using type = std::int64_t;
};
template <class T> using SortKey = typename SortKeyOf<T>::type;

constexpr std::int64_t kMostTrimmed = 512;  // columns of a trimmed mean in one call
constexpr int kClientLanes = 16;            // clients whose words are drawn together

// The formulas by number, kServerSgd or kDirectionSgd, and what the code around them asks of each.
#define FF_NUMBER(name, Formula) k##Formula,
enum ServerFormula { FF_SERVER_FORMULAS(FF_NUMBER) kServerFormulas };
enum DirectionFormula { FF_DIRECTIONS(FF_NUMBER) kDirections };
#undef FF_NUMBER

struct ServerTraits {
  const char* name;
  bool has_m, has_v, has_vmax;
};
#define FF_TRAITS(name, Formula) {#name, Formula::has_m, Formula::has_v, Formula::has_vmax},
inline constexpr ServerTraits kServerTraits[] = {FF_SERVER_FORMULAS(FF_TRAITS)};
#undef FF_TRAITS

struct DirectionTraits {
  const char* name;
  bool has_m, has_v, corrects_bias;
};
#define FF_TRAITS(name, Formula) {#name, Formula::has_m, Formula::has_v, Formula::corrects_bias},
inline constexpr DirectionTraits kDirectionTraits[] = {FF_DIRECTIONS(FF_TRAITS)};
#undef FF_TRAITS

enum DeltaType { kSame, kBfloat16, kFloat16 };  // how deltas are stored: as x is, or half as wide

// Where a covered rule finds its second moment nu at a coordinate.
enum NuSource {
  kFresh,      // SM3-II at a refresh: the cover's minimum and g^2; raises the maxima
  kFreshKept,  // the same, and nu is stored (exact delay)
  kFromCover,  // the cover's minimum (SM3-I, and SM3-II between refreshes)
  kKept,       // the stored nu (SM3-II between refreshes, exact delay)
  kNuSources
};

// One tile of a matrix worked by SM3. Pointers are at the tile's first element; rows are `stride` apart in x, m and nu;
// the gradient's rows are `grad_stride` apart (it may lie in a scratch buffer).
template <class T> struct Tile {
  std::int64_t rows, cols, stride, grad_stride;
  T* x;
  const T* grad;
  T* m;
  T* nu;
  const T* row_min;
  const T* col_min;
  T* row_max;
  T* col_max;
};

template <class T> struct VectorLoops {
  // [formula][second moment of delta][has m]
  void (*server[kServerFormulas][2][2])(std::int64_t n, T* x, const T* delta, T* m, T* v, T* vmax,
                                        const ServerNumbers<T>& numbers);
  // [formula][refresh]
  void (*client[kDirections][2])(std::int64_t n, T* x, const T* g, T* m, T* v, T step,
                                 const DirectionNumbers<T>& numbers);
  double (*direction_squares[kDirections][2])(std::int64_t n, const T* g, const T* m, const T* v,
                                              const DirectionNumbers<T>& numbers);
  // [formula][nu source][has m]; only directions with a second moment have covers
  void (*covered[kDirections][kNuSources][2])(const Tile<T>& tile, T step, const DirectionNumbers<T>& numbers);
  double (*covered_squares[kDirections][kNuSources][2])(const Tile<T>& tile, const DirectionNumbers<T>& numbers);
  void (*cover_maxima)(const Tile<T>& tile);

  // Moves x along -step * g and returns the sum of squares of what x really moved by.
  double (*measured_move)(std::int64_t n, T* x, const T* g, T step);
  double (*squares)(std::int64_t n, const T* a);
  double (*change_squares)(std::int64_t n, const T* g, const T* g_prev);
  // anchor or correction may be null
  void (*correct)(std::int64_t n, T* out, const T* g, const T* x, const T* anchor, const T* correction, T weight_decay,
                  T prox, T scale);
  void (*multiply)(std::int64_t n, T* x, T factor);
  void (*widen[3])(std::int64_t n, T* out, const void* half);
  // out[i] = sum over clients, in order, of weights[c] * deltas[c * stride + i]; [DeltaType]
  void (*weigh[3])(std::int64_t n, T* out, const void* deltas, std::int64_t stride, const T* weights,
                   std::int64_t clients);
  // out[i] = sum over clients, in order, of weights[c] * (rows[c][i] - x[i]); without x where it is null
  void (*weigh_moves)(std::int64_t n, T* out, const T* const* rows, const T* x, const T* weights, std::int64_t clients);
  // out[i] = the mean over clients of deltas[c * stride + i] without the `trim` smallest and the `trim` largest, n up
  // to kMostTrimmed; `keys` is room for `clients` times n, rounded up to whole lines; [DeltaType]
  void (*trim[3])(std::int64_t n, T* out, const void* deltas, std::int64_t stride, std::int64_t clients,
                  std::int64_t trim, SortKey<T>* keys);
  void (*raise)(std::int64_t n, T* maxima, const T* others);

  // The first n numbers, or sort keys, of a client's stream from Philox block `block` on: four numbers, or two keys, to
  // a block. The same at every level, whatever T is.
  void (*uniform)(const Stream& stream, Word client, Word block, std::int64_t n, float* out);
  void (*normal)(const Stream& stream, Word client, Word block, std::int64_t n, float* out);
  void (*sort_keys)(const Stream& stream, Word client, Word block, std::int64_t n, std::int64_t* out);
  // The words of so many Philox blocks of kClientLanes clients, who have few each: word k of all of them, then the
  // next.
  void (*words_of_clients)(const Stream& stream, const std::int64_t* clients, std::int64_t blocks, Word* out);

  // Reads k arrays, updates j arrays in place: the streaming bound of an op with the same k and j.
  void (*probe)(std::int64_t begin, std::int64_t end, const T* const* reads, int k, T* const* updates, int j);
};

}  // namespace fastfed
