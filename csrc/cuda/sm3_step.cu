// SM3: one step of a client rule whose second moment lives in cover sets. kernels/covers.py tells how a tensor of any
// rank is a matrix with one value per row and per column; kernels/cuda/sm3_step.py makes the tables that are read here.
//
// A block works one tile of one matrix, one pass over its elements. Minima come from `minima` (clients, slots), maxima
// go to `maxima` (same shape): rows first, then columns, a slot each. Maxima are of non-negative floats, whose bits are
// ordered like integers, so atomicMax is exact and its order does not matter.
#include "cuda/client.h"

namespace fastfed {

struct Tile {
  long long offset;      // of its first element in the packed vector
  long long stride;      // from row to row: the matrix' columns
  long long rows, cols;  // of this tile
  long long row_slot;    // of its first row; negative: the tensor has no row sets
  long long col_slot;    // of its first column
  long long lanes;       // neighbouring threads on one row: a power of two, at most THREADS
  long long wide;        // 1: every quad of it starts on a 16-byte border and is whole
};

struct Cover {
  const Tile* tiles;
  const float* minima;
  int* maxima;  // the bits of floats
  long long slots;
  long long aligned;  // 1: the rows of the packed vectors allow wide accesses
};

// ---- where a thread stands in its tile -----------------------------------------------------------------------------

struct Stand {
  int row, row_step;  // its first row and the distance to the next
  int col, count;     // its quad of columns, and how many of it exist
};

FF_DEVICE Stand stand_in(const Tile& tile) {
  const int lanes = int(tile.lanes), col = (int(threadIdx.x) % lanes) * QUAD;
  const int rest = int(tile.cols) - col;
  return {int(threadIdx.x) / lanes, THREADS / lanes, col, rest < QUAD ? rest : QUAD};
}

// visit(row, inside) for every row of the thread; all threads of a block make the same number of visits, so that visit
// may shuffle. `inside` is false where the thread has no element.
template <class Visit> FF_DEVICE void for_each_row(const Tile& tile, const Stand& stand, const Visit& visit) {
  const int rows = int(tile.rows);
  for (int first = 0; first < rows; first += stand.row_step) {
    const int row = first + stand.row;
    visit(row, row < rows && stand.count > 0);
  }
}

FF_DEVICE Place place_of(const Tile& tile, const Stand& stand, long long client, int row) {
  return {client, tile.offset + row * tile.stride + stand.col, stand.count};
}

// ---- minima --------------------------------------------------------------------------------------------------------

FF_DEVICE float infinity() { return __int_as_float(0x7F800000); }

FF_DEVICE Quad column_minima(const Cover& cover, const Tile& tile, const Stand& stand, long long client) {
  return load<false>(cover.minima, client * cover.slots + tile.col_slot + stand.col, stand.count);
}

FF_DEVICE float row_minimum(const Cover& cover, const Tile& tile, long long client, int row) {
  return tile.row_slot < 0 ? infinity() : cover.minima[client * cover.slots + tile.row_slot + row];
}

// ---- maxima --------------------------------------------------------------------------------------------------------

// The maxima of what one thread has seen, as bits.
struct Maxima {
  int column[QUAD] = {0, 0, 0, 0};
  int row = 0;
};

FF_DEVICE void note(Maxima& maxima, const Quad& values, int count) {
  maxima.row = 0;
  FF_UNROLL for (int k = 0; k < QUAD; ++k) {
    const int bits = k < count ? __float_as_int(values.e[k]) : 0;
    maxima.row = larger(maxima.row, bits);
    maxima.column[k] = larger(maxima.column[k], bits);
  }
}

// Every lane of the warp must call it. The lanes of a row agree on its maximum and one of them raises the slot.
FF_DEVICE void raise_row(const Cover& cover, const Tile& tile, long long client, int row, int maximum) {
  const int together = tile.lanes < LANES ? int(tile.lanes) : LANES;
  for (int offset = together / 2; offset > 0; offset /= 2) {
    maximum = larger(maximum, __shfl_xor_sync(ALL_LANES, maximum, offset));
  }
  if (threadIdx.x % together == 0 && maximum > 0) {
    atomicMax(cover.maxima + client * cover.slots + tile.row_slot + row, maximum);
  }
}

// Every thread of the block must call it, once per kernel: rows inside a warp meet by shuffles, warps in shared memory.
FF_DEVICE void raise_columns(const Cover& cover, const Tile& tile, long long client, const Stand& stand,
                             Maxima& maxima) {
  __shared__ int of_block[THREADS * QUAD];
  FF_UNROLL for (int k = 0; k < QUAD; ++k) of_block[k * THREADS + threadIdx.x] = 0;
  const int lanes = int(tile.lanes);
  for (int offset = lanes; offset < LANES; offset *= 2) {
    FF_UNROLL for (int k = 0; k < QUAD; ++k) {
      maxima.column[k] = larger(maxima.column[k], __shfl_xor_sync(ALL_LANES, maxima.column[k], offset));
    }
  }
  __syncthreads();
  if (int(threadIdx.x) % LANES < lanes) {
    FF_UNROLL for (int k = 0; k < QUAD; ++k) atomicMax(of_block + stand.col + k, maxima.column[k]);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < int(tile.cols); i += THREADS) {
    if (of_block[i] > 0) atomicMax(cover.maxima + client * cover.slots + tile.col_slot + i, of_block[i]);
  }
}

// ---- the three passes ----------------------------------------------------------------------------------------------

// The pass's own part of a client step, for one tile of one client that is active.
struct Task {
  const ClientVectors& to;
  const ClientNumbers& n;
  const Cover& cover;
  const Tile& tile;
  const Coefficients& c;
  long long client;
};

// nu of one quad. Form II with a refresh: from the gradient; else what was kept, else the cover's bound.
template <bool FormII, bool Wide>
FF_DEVICE Quad moment_quad(const Task& t, long long index, int count, const Quad& g, float row_min,
                           const Quad& col_min) {
  Quad nu;
  if (FormII && t.c.refresh == 0.0f && t.to.v != nullptr) return load<Wide>(t.to.v, index, count);
  FF_UNROLL for (int k = 0; k < QUAD; ++k) {
    nu.e[k] = smaller(row_min, col_min.e[k]);
    if (FormII && t.c.refresh != 0.0f) nu.e[k] = second_moment(nu.e[k], g.e[k] * g.e[k], t.n.beta2, t.n.gain2);
  }
  return nu;
}

template <class Direction, bool HasM, bool Wide>
FF_DEVICE Quad cover_direction(const Task& t, long long index, int count, const Quad& g, const Quad& nu, Quad& m) {
  if constexpr (HasM) m = load<Wide>(t.to.m, index, count);
  const DirectionNumbers<float> numbers = direction_numbers(t.n, t.c);
  Quad direction;
  FF_UNROLL for (int k = 0; k < QUAD; ++k) direction.e[k] = Direction::of(g.e[k], m.e[k], nu.e[k], numbers);
  return direction;
}

template <class Direction, bool HasM, bool FormII> struct Update {
  template <bool Wide> FF_DEVICE void run(const Task& t, double*) {
    const Stand stand = stand_in(t.tile);
    const Quad col_min = column_minima(t.cover, t.tile, stand, t.client);
    const bool refreshes = FormII && t.c.refresh != 0.0f;
    Maxima maxima;
    for_each_row(t.tile, stand, [&](int row, bool inside) {
      if (inside) {
        const Quad nu =
            move<Wide>(t, place_of(t.tile, stand, t.client, row), row_minimum(t.cover, t.tile, t.client, row), col_min);
        if (refreshes) note(maxima, nu, stand.count);
      }
      if (refreshes && t.tile.row_slot >= 0) {
        raise_row(t.cover, t.tile, t.client, row, inside ? maxima.row : 0);
      }
    });
    if (refreshes) raise_columns(t.cover, t.tile, t.client, stand, maxima);
  }

  // Steps one quad of x and whatever else is kept; returns its nu.
  template <bool Wide> FF_DEVICE Quad move(const Task& t, const Place& p, float row_min, const Quad& col_min) {
    const long long index = index_of(p, t.to.d);
    Quad x = load<Wide>(t.to.x, index, p.count), m = {};
    const Quad g = gradient_quad<Wide>(t.to, t.n, p, x, t.c.scale);
    const Quad nu = moment_quad<FormII, Wide>(t, index, p.count, g, row_min, col_min);
    const Quad direction = cover_direction<Direction, HasM, Wide>(t, index, p.count, g, nu, m);
    FF_UNROLL for (int k = 0; k < QUAD; ++k) x.e[k] = moved(x.e[k], direction.e[k], t.c.step);
    store<Wide>(t.to.x, index, p.count, x);
    if constexpr (HasM) store<Wide>(t.to.m, index, p.count, m);
    if (FormII && t.c.refresh != 0.0f && t.to.v != nullptr) store<Wide>(t.to.v, index, p.count, nu);
    return nu;
  }
};

template <class Direction, bool HasM, bool FormII> struct DirectionSquares {
  template <bool Wide> FF_DEVICE void run(const Task& t, double* sum) {
    const Stand stand = stand_in(t.tile);
    const Quad col_min = column_minima(t.cover, t.tile, stand, t.client);
    for_each_row(t.tile, stand, [&](int row, bool inside) {
      if (!inside) return;
      const Place p = place_of(t.tile, stand, t.client, row);
      const long long index = index_of(p, t.to.d);
      Quad m = {};
      const Quad g = gradient_quad<Wide>(t.to, t.n, p, load_or_zero<Wide>(t.to.x, index, p.count), t.c.scale);
      const float row_min = row_minimum(t.cover, t.tile, t.client, row);
      const Quad nu = moment_quad<FormII, Wide>(t, index, p.count, g, row_min, col_min);
      *sum += sum_of_squares(cover_direction<Direction, HasM, Wide>(t, index, p.count, g, nu, m), p.count);
    });
  }
};

// SM3-I's refresh: the maxima of the squared gradient.
struct GradientMaxima {
  template <bool Wide> FF_DEVICE void run(const Task& t, double*) {
    if (t.c.refresh == 0.0f) return;
    const Stand stand = stand_in(t.tile);
    Maxima maxima;
    for_each_row(t.tile, stand, [&](int row, bool inside) {
      if (inside) {
        const Place p = place_of(t.tile, stand, t.client, row);
        const Quad x = load_or_zero<Wide>(t.to.x, index_of(p, t.to.d), p.count);
        Quad g = gradient_quad<Wide>(t.to, t.n, p, x, t.c.scale);
        FF_UNROLL for (int k = 0; k < QUAD; ++k) g.e[k] = g.e[k] * g.e[k];
        note(maxima, g, p.count);
      }
      if (t.tile.row_slot >= 0) raise_row(t.cover, t.tile, t.client, row, inside ? maxima.row : 0);
    });
    raise_columns(t.cover, t.tile, t.client, stand, maxima);
  }
};

template <class Pass>
FF_DEVICE void run_tile(const ClientVectors& to, const ClientNumbers& n, const Cover& cover, double* sum) {
  const long long client = client_of_block();
  const Coefficients c = to.coefficients[client];
  if (c.active == 0.0f) return;
  const Tile tile = cover.tiles[blockIdx.x];
  const Task task = {to, n, cover, tile, c, client};
  if (tile.wide != 0 && cover.aligned != 0) {
    Pass::template run<true>(task, sum);
  } else {
    Pass::template run<false>(task, sum);
  }
}

// ---- mu to minima and back -----------------------------------------------------------------------------------------

// One axis of one side of a matrix: index i on it is (flat / stride) % size; `side` is the side's length.
struct Axis {
  long long mu_offset, size, stride, side;
};

// Up to THREADS neighbouring rows (or columns) of one matrix, `first` counted inside it.
struct Segment {
  long long slot, first, count, axis, axes;
};

FF_DEVICE void expand(const Segment& segment, const Axis* axes, const float* mu, float* minima, int* maxima) {
  if (int(threadIdx.x) >= segment.count) return;
  const long long flat = segment.first + threadIdx.x, slot = segment.slot + threadIdx.x;
  float smallest = infinity();
  for (long long a = segment.axis; a < segment.axis + segment.axes; ++a) {
    smallest = smaller(smallest, mu[axes[a].mu_offset + (flat / axes[a].stride) % axes[a].size]);
  }
  minima[slot] = smallest;
  maxima[slot] = 0;
}

// Entries `first` .. of one axis: a thread each where the axis is a whole side, else a warp each. `slot`: of the side.
struct Fold {
  long long slot, first, count, axis;
};

FF_DEVICE int largest_of(const int* side, const Axis& axis, long long entry, int from, int step) {
  int largest = 0;
  for (long long i = from; i < axis.side / axis.size; i += step) {
    const long long outer = i / axis.stride, inner = i % axis.stride;
    largest = larger(largest, side[(outer * axis.size + entry) * axis.stride + inner]);
  }
  return largest;
}

template <bool FormII> FF_DEVICE void keep_maximum(float* mu, int bits, const ClientNumbers& n) {
  const float largest = __int_as_float(bits);
  *mu = FormII ? largest : second_moment(*mu, largest, n.beta2, n.gain2);
}

template <bool FormII>
FF_DEVICE void fold(const Fold& part, const Axis& axis, float* mu, const int* maxima, const ClientNumbers& n) {
  const int thread = threadIdx.x, lane = thread % LANES, warp = thread / LANES;
  float* out = mu + axis.mu_offset + part.first;
  const int* side = maxima + part.slot;
  if (axis.size == axis.side) {
    if (thread < part.count) keep_maximum<FormII>(out + thread, side[part.first + thread], n);
    return;
  }
  if (warp >= part.count) return;  // whole warps: the shuffles below stay complete
  int largest = largest_of(side, axis, part.first + warp, lane, LANES);
  FF_UNROLL for (int offset = LANES / 2; offset > 0; offset /= 2) {
    largest = larger(largest, __shfl_xor_sync(ALL_LANES, largest, offset));
  }
  if (lane == 0) keep_maximum<FormII>(out + warp, largest, n);
}

}  // namespace fastfed

#define FF_COMMA ,  // inside a macro's argument
#define MAKE(name, Pass)                                                                                  \
  FF_KERNEL(name, (fastfed::ClientVectors to, fastfed::ClientNumbers n, fastfed::Cover cover)) {          \
    if (fastfed::client_of_block() < to.clients) fastfed::run_tile<fastfed::Pass>(to, n, cover, nullptr); \
  }
#define FORM(form, is_ii)                                                                           \
  MAKE(sm3_update_adagrad_##form, Update<fastfed::DirectionAdagrad FF_COMMA false FF_COMMA is_ii>)  \
  MAKE(sm3_update_adagrad_m_##form, Update<fastfed::DirectionAdagrad FF_COMMA true FF_COMMA is_ii>) \
  MAKE(sm3_update_adam_m_##form, Update<fastfed::DirectionAdam FF_COMMA true FF_COMMA is_ii>)

FORM(i, false)
FORM(ii, true)
MAKE(sm3_gradient_maxima, GradientMaxima)
#undef FORM
#undef MAKE

#define MAKE(name, Pass)                                                                                           \
  FF_KERNEL(name, (fastfed::ClientVectors to, fastfed::ClientNumbers n, fastfed::Cover cover, double* partials)) { \
    const long long client = fastfed::client_of_block();                                                           \
    if (client >= to.clients) return;                                                                              \
    double sum = 0.0;                                                                                              \
    fastfed::run_tile<fastfed::Pass>(to, n, cover, &sum);                                                          \
    fastfed::keep_partial(partials, client, sum);                                                                  \
  }
#define FORM(form, is_ii)                                                                                      \
  MAKE(sm3_squares_adagrad_##form, DirectionSquares<fastfed::DirectionAdagrad FF_COMMA false FF_COMMA is_ii>)  \
  MAKE(sm3_squares_adagrad_m_##form, DirectionSquares<fastfed::DirectionAdagrad FF_COMMA true FF_COMMA is_ii>) \
  MAKE(sm3_squares_adam_m_##form, DirectionSquares<fastfed::DirectionAdam FF_COMMA true FF_COMMA is_ii>)
FORM(i, false)
FORM(ii, true)
#undef FORM
#undef MAKE

FF_KERNEL(sm3_expand, (const fastfed::Segment* segments, const fastfed::Axis* axes, const float* mu, float* minima,
                       int* maxima, long long clients, long long sets, long long slots)) {
  const long long client = fastfed::client_of_block();
  if (client >= clients) return;
  fastfed::expand(segments[blockIdx.x], axes, mu + client * sets, minima + client * slots, maxima + client * slots);
}

#define MAKE(name, is_ii)                                                                                            \
  FF_KERNEL(name, (const fastfed::Fold* folds, const fastfed::Axis* axes, const fastfed::Coefficients* coefficients, \
                   float* mu, const int* maxima, fastfed::ClientNumbers n, long long clients, long long sets,        \
                   long long slots)) {                                                                               \
    const long long client = fastfed::client_of_block();                                                             \
    if (client >= clients) return;                                                                                   \
    if (coefficients[client].active == 0.0f || coefficients[client].refresh == 0.0f) return;                         \
    const fastfed::Fold part = folds[blockIdx.x];                                                                    \
    fastfed::fold<is_ii>(part, axes[part.axis], mu + client * sets, maxima + client * slots, n);                     \
  }
MAKE(sm3_fold_i, false)
MAKE(sm3_fold_ii, true)
#undef MAKE
