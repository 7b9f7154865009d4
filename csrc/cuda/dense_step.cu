// The fused step of dense layers, every client with its own weights W (outputs, inputs): where this step's forward pass
// reads W, the last step's gradient is made tile by tile, the client rule applied to the tile in registers, and the new
// W multiplied with this step's inputs. One read and one write of W for both; its gradient never reaches memory.
// The twin is `update_forward` of kernels/triton/engine/products.py.
//
// A block owns DENSE_OUTPUTS outputs of one client and walks along the inputs. Every sum has one order, which the layer
// alone decides. Products are fused multiply-adds, one instruction each; formulas are rules.h's, rounded as everywhere.
#include "cuda/client.h"
#include "curves.h"

namespace fastfed {

struct DenseLayer {
  long long weight, bias;  // where they start in a client's vector; bias is -1 where there is none
  long long outputs, inputs, in_stride, out_stride;
  long long rows, capacity;  // per example; of a full batch
  long long curve;
};

// Values (clients, capacity, stride). The last step's are `before`, its input, and `d_out`, its output's gradient.
struct DenseValues {
  const float *value, *before, *d_out;
  float* out;
  const int *lengths, *lengths_before;  // examples of every client's batch; 0: no forward pass, no update
};

// ---- the tile ------------------------------------------------------------------------------------------------------

// The part of W a block works on at a time, for batches of up to ROWS rows. Rows in shared memory are a quad longer
// than they need be, so that quads of eight neighbouring rows lie in different banks.
template <int ROWS> struct DenseTile {
  static constexpr int inputs = DENSE_OUTPUTS * FEW_ROWS / ROWS;  // twice the rows, half the inputs: it has to fit
  static constexpr int quads = inputs / QUAD;
  static constexpr int patch = DENSE_OUTPUTS * quads / THREADS;  // rows of W of one thread

  alignas(16) float weights[DENSE_OUTPUTS][inputs + QUAD];
  alignas(16) float value[ROWS][inputs + QUAD];
  alignas(16) float before[ROWS][inputs + QUAD];
  alignas(16) float d_out[ROWS][DENSE_OUTPUTS];
  float bias[DENSE_OUTPUTS];
};

template <int COUNT> struct alignas(COUNT * sizeof(float)) Neighbours {
  float e[COUNT];
};

template <int COUNT> FF_DEVICE Neighbours<COUNT> neighbours(const float* from) {
  return *reinterpret_cast<const Neighbours<COUNT>*>(from);
}

FF_DEVICE Quad& quad_at(float* address) { return *reinterpret_cast<Quad*>(address); }

FF_DEVICE int quad_count(long long rest) { return rest >= QUAD ? QUAD : rest > 0 ? int(rest) : 0; }

// Columns from `first` on of a value's rows; zeros where there are none.
template <bool Wide, int WIDTH, int ROWS, int PITCH>
FF_DEVICE void load_rows(float (&to)[ROWS][PITCH], const float* from, long long stride, int rows, long long first,
                         long long width) {
  FF_UNROLL for (int i = 0; i < ROWS * WIDTH / QUAD / THREADS; ++i) {
    const int quad = i * THREADS + int(threadIdx.x), row = quad / (WIDTH / QUAD), column = quad % (WIDTH / QUAD) * QUAD;
    const int count = row < rows ? quad_count(width - first - column) : 0;
    quad_at(&to[row][column]) = count > 0 ? load<Wide>(from, row * stride + first + column, count) : Quad{};
  }
}

// ---- the update ----------------------------------------------------------------------------------------------------

// A thread's part of a tile of W: a quad of some neighbouring rows, and the moments of it.
template <int ROWS> struct Patch {
  static constexpr int size = DenseTile<ROWS>::patch;

  int row, column;  // of its first number in the tile
  Place places[size];
  Quad x[size];
  Moments moments[size];
};

template <class Direction, int ROWS, bool Wide>
FF_DEVICE Patch<ROWS> load_patch(const ClientVectors& from, const DenseLayer& layer, long long client, long long output,
                                 long long input, bool updates) {
  Patch<ROWS> patch = {};
  patch.row = int(threadIdx.x) / DenseTile<ROWS>::quads * patch.size;
  patch.column = int(threadIdx.x) % DenseTile<ROWS>::quads * QUAD;
  FF_UNROLL for (int j = 0; j < patch.size; ++j) {
    const long long n = output + patch.row + j, k = input + patch.column;
    const Place place = {client, layer.weight + n * layer.inputs + k,
                         n < layer.outputs ? quad_count(layer.inputs - k) : 0};
    patch.places[j] = place;
    if (place.count > 0) {
      patch.x[j] = load<Wide>(from.x, index_of(place, from.d), place.count);
      if (updates) patch.moments[j] = load_moments<Direction, Wide>(from, place);
    }
  }
  return patch;
}

// Moves W by the rule. All gradients are made and corrected before anything is stored, so that reads need not wait.
template <class Direction, int ROWS, bool Wide>
FF_DEVICE void move_patch(Patch<ROWS>& patch, DenseTile<ROWS>& tile, int rows, const ClientVectors& to,
                          const ClientNumbers& n, const Coefficients& c) {
  Quad g[Patch<ROWS>::size] = {};
  FF_UNROLL_BY(4) for (int r = 0; r < rows; ++r) {
    const auto d_out = neighbours<Patch<ROWS>::size>(&tile.d_out[r][patch.row]);
    const Quad before = quad_at(&tile.before[r][patch.column]);
    FF_UNROLL for (int j = 0; j < patch.size; ++j) {
      FF_UNROLL for (int k = 0; k < QUAD; ++k) g[j].e[k] = __fmaf_rn(d_out.e[j], before.e[k], g[j].e[k]);
    }
  }
  FF_UNROLL for (int j = 0; j < patch.size; ++j) {
    const Place& place = patch.places[j];
    if (place.count > 0) g[j] = corrected_quad<Wide>(to, n, place, patch.x[j], g[j], c.scale);
  }
  FF_UNROLL for (int j = 0; j < patch.size; ++j) {
    const Place& place = patch.places[j];
    if (place.count > 0) {
      patch.x[j] = step_quad<Direction, Wide>(to, n, c, place, patch.x[j], g[j], patch.moments[j]);
    }
  }
}

// Leaves W in the tile, zero beyond its edges, where a rule may have made anything of nothing.
template <int ROWS> FF_DEVICE void keep_patch(const Patch<ROWS>& patch, DenseTile<ROWS>& tile) {
  FF_UNROLL for (int j = 0; j < patch.size; ++j) {
    Quad kept;
    FF_UNROLL for (int k = 0; k < QUAD; ++k) kept.e[k] = k < patch.places[j].count ? patch.x[j].e[k] : 0.0f;
    quad_at(&tile.weights[patch.row + j][patch.column]) = kept;
  }
}

// The bias of the block's outputs, one a thread: moved if there was a batch in the last step, and left in the tile.
template <class Direction, int ROWS>
FF_DEVICE void move_bias(DenseTile<ROWS>& tile, int rows, const ClientVectors& to, const ClientNumbers& n,
                         const Coefficients& c, const DenseLayer& layer, long long client, long long output) {
  const int own = int(threadIdx.x);
  if (own >= DENSE_OUTPUTS) return;
  Quad b = {};
  if (layer.bias >= 0 && output + own < layer.outputs) {
    const Place place = {client, layer.bias + output + own, 1};
    b = load<false>(to.x, index_of(place, to.d), 1);
    if (rows > 0) {
      Moments moments = load_moments<Direction, false>(to, place);
      Quad g = {};
      for (int r = 0; r < rows; ++r) g.e[0] += tile.d_out[r][own];
      g = corrected_quad<false>(to, n, place, b, g, c.scale);
      b = step_quad<Direction, false>(to, n, c, place, b, g, moments);
    }
  }
  tile.bias[own] = b.e[0];
}

// ---- the forward pass ----------------------------------------------------------------------------------------------

// Threads stand in a square over outputs x rows, SIDE apart: a warp has eight outputs and four rows, so that its quads
// of W and of the inputs are read from shared memory in one go each.
constexpr int SIDE = 16;
static_assert(SIDE * SIDE == THREADS, "the square has every thread");

template <int ROWS> struct Outputs {
  static constexpr int down = DENSE_OUTPUTS / SIDE, across = ROWS / SIDE;

  float e[down][across];
};

FF_DEVICE int first_output() { return int(threadIdx.x) % 8 + int(threadIdx.x) / LANES % 2 * 8; }
FF_DEVICE int first_row() { return int(threadIdx.x) % LANES / 8 + int(threadIdx.x) / LANES / 2 * 4; }

// Adds the tile's product, made apart: sums of sums err less than one long sum.
template <int ROWS> FF_DEVICE void add_product(Outputs<ROWS>& to, DenseTile<ROWS>& tile) {
  const int output = first_output(), row = first_row();
  Outputs<ROWS> sum = {};
  FF_UNROLL_BY(2) for (int k = 0; k < tile.inputs; k += QUAD) {
    Quad w[to.down], a[to.across];
    FF_UNROLL for (int j = 0; j < to.down; ++j) w[j] = quad_at(&tile.weights[output + j * SIDE][k]);
    FF_UNROLL for (int i = 0; i < to.across; ++i) a[i] = quad_at(&tile.value[row + i * SIDE][k]);
    FF_UNROLL for (int e = 0; e < QUAD; ++e) {
      FF_UNROLL for (int j = 0; j < to.down; ++j) {
        FF_UNROLL for (int i = 0; i < to.across; ++i) sum.e[j][i] = __fmaf_rn(w[j].e[e], a[i].e[e], sum.e[j][i]);
      }
    }
  }
  FF_UNROLL for (int j = 0; j < to.down; ++j) {
    FF_UNROLL for (int i = 0; i < to.across; ++i) to.e[j][i] += sum.e[j][i];
  }
}

// kernels/layers.py's numbers of the curves that can be fused.
enum FusedCurve { NO_CURVE, RELU, SIGMOID, TANH };

FF_DEVICE float activated(float a, long long curve) {
  if (curve == RELU) return a <= 0.0f ? 0.0f : a;
  if (curve == SIGMOID) return sigmoid_of(a);
  return curve == TANH ? tanh_of(a) : a;
}

template <int ROWS>
FF_DEVICE void store_outputs(float* out, const Outputs<ROWS>& made, const DenseTile<ROWS>& tile, int rows,
                             const DenseLayer& layer, long long output) {
  FF_UNROLL for (int j = 0; j < made.down; ++j) {
    const int own = first_output() + j * SIDE;
    FF_UNROLL for (int i = 0; i < made.across; ++i) {
      const int row = first_row() + i * SIDE;
      if (output + own < layer.outputs && row < rows) {
        out[row * layer.out_stride + output + own] = activated(made.e[j][i] + tile.bias[own], layer.curve);
      }
    }
  }
}

// ---- the step ------------------------------------------------------------------------------------------------------

template <class Direction, int ROWS, bool Wide>
FF_DEVICE void dense_step(const ClientVectors& to, const ClientNumbers& n, const DenseLayer& layer,
                          const DenseValues& values) {
  using Tile = DenseTile<ROWS>;
  __shared__ Tile tile;
  const long long client = client_of_block(), output = (long long)blockIdx.x * DENSE_OUTPUTS;
  if (client >= to.clients) return;
  const int rows = int(values.lengths[client] * layer.rows),
            rows_before = int(values.lengths_before[client] * layer.rows);
  if (rows + rows_before == 0) return;
  const Coefficients c = to.coefficients[client];
  const long long in_at = client * layer.capacity * layer.in_stride,
                  out_at = client * layer.capacity * layer.out_stride;

  load_rows<Wide, DENSE_OUTPUTS>(tile.d_out, values.d_out + out_at, layer.out_stride, rows_before, output,
                                 layer.outputs);
  __syncthreads();
  move_bias<Direction>(tile, rows_before, to, n, c, layer, client, output);
  Outputs<ROWS> made = {};
  for (long long input = 0; input < layer.inputs; input += Tile::inputs) {
    auto patch = load_patch<Direction, ROWS, Wide>(to, layer, client, output, input, rows_before > 0);
    load_rows<Wide, Tile::inputs>(tile.value, values.value + in_at, layer.in_stride, rows, input, layer.inputs);
    if (rows_before > 0) {
      load_rows<Wide, Tile::inputs>(tile.before, values.before + in_at, layer.in_stride, rows_before, input,
                                    layer.inputs);
      __syncthreads();
      move_patch<Direction, ROWS, Wide>(patch, tile, rows_before, to, n, c);
    }
    keep_patch(patch, tile);
    __syncthreads();
    if (rows > 0) add_product(made, tile);
    __syncthreads();
  }
  store_outputs(values.out + out_at, made, tile, rows, layer, output);
}

}  // namespace fastfed

#define MAKE(name, Direction, ROWS, wide)                                                                              \
  FF_KERNEL_OF(                                                                                                        \
      fastfed::THREADS, fastfed::DENSE_BLOCKS_PER_SM, name,                                                            \
      (fastfed::ClientVectors to, fastfed::ClientNumbers n, fastfed::DenseLayer layer, fastfed::DenseValues values)) { \
    fastfed::dense_step<fastfed::Direction, fastfed::ROWS, wide>(to, n, layer, values);                                \
  }
#define MAKE_RULE(rule, Direction)                                   \
  MAKE(dense_step_##rule##_few_rows, Direction, FEW_ROWS, false)     \
  MAKE(dense_step_##rule##_few_rows_wide, Direction, FEW_ROWS, true) \
  MAKE(dense_step_##rule##_many_rows, Direction, MANY_ROWS, false)   \
  MAKE(dense_step_##rule##_many_rows_wide, Direction, MANY_ROWS, true)
FF_DIRECTIONS(MAKE_RULE)
#undef MAKE_RULE
#undef MAKE
