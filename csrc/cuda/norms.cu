// Sums of squares of rows in two launches (blocks, then their partial sums in a fixed order); rows scaled to a norm.
#include "cuda/grid.h"

namespace fastfed {

struct Rows {
  float* x;
  long long clients, d;
};

template <bool Wide> FF_DEVICE void square_rows(const Rows& rows, double* partials) {
  const long long client = client_of_block();
  if (client >= rows.clients) return;
  const float* row = rows.x + client * rows.d;
  double sum = 0.0;
  FF_UNROLL for (int i = 0; i < SUM_QUADS; ++i) {
    const Span span = sum_quad_of_thread(i, rows.d);
    if (span.count > 0) sum += sum_of_squares(load<Wide>(row, span.at, span.count), span.count);
  }
  keep_partial(partials, client, sum);
}

// One block per client; thread t adds the partial sums t, t + THREADS, … in order, then the block adds its threads.
FF_DEVICE double fold_partials(const double* partials, long long client, long long blocks) {
  double sum = 0.0;
  for (long long i = threadIdx.x; i < blocks; i += THREADS) sum += partials[client * blocks + i];
  return block_sum(sum);
}

template <bool Wide> FF_DEVICE void clip_rows(const Rows& rows, const double* norms, double limit) {
  const long long client = client_of_block();
  const Span span = quad_of_thread(rows.d);
  if (client >= rows.clients || span.count <= 0) return;
  const float scale = float(clip_scale(norms[client], limit));
  if (scale == 1.0f) return;
  const long long index = client * rows.d + span.at;
  Quad quad = load<Wide>(rows.x, index, span.count);
  FF_UNROLL for (int k = 0; k < QUAD; ++k) quad.e[k] = quad.e[k] * scale;
  store<Wide>(rows.x, index, span.count, quad);
}

}  // namespace fastfed

FF_KERNEL(square_rows, (fastfed::Rows rows, double* partials)) { fastfed::square_rows<false>(rows, partials); }
FF_KERNEL(square_rows_wide, (fastfed::Rows rows, double* partials)) { fastfed::square_rows<true>(rows, partials); }

FF_KERNEL(fold_squares, (const double* partials, double* out, long long clients, long long blocks)) {
  const long long client = fastfed::client_of_block();
  if (client >= clients) return;
  const double sum = fastfed::fold_partials(partials, client, blocks);
  if (threadIdx.x == 0) out[client] = sum;
}
FF_KERNEL(fold_norms, (const double* partials, double* out, long long clients, long long blocks)) {
  const long long client = fastfed::client_of_block();
  if (client >= clients) return;
  const double sum = fastfed::fold_partials(partials, client, blocks);
  if (threadIdx.x == 0) out[client] = fastfed::root(sum);
}

FF_KERNEL(clip_rows, (fastfed::Rows rows, const double* norms, double limit)) {
  fastfed::clip_rows<false>(rows, norms, limit);
}
FF_KERNEL(clip_rows_wide, (fastfed::Rows rows, const double* norms, double limit)) {
  fastfed::clip_rows<true>(rows, norms, limit);
}
