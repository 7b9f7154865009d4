/* FastFed's kernels for programs in C and C++: server steps, sums over clients, norms and clipping over plain arrays.
 *
 * The library is libfastfed.so beside the Python package (`fastfed.get_library()`), this header is where
 * `fastfed.get_include()` says. Results have the same bits as `fastfed.kernels` on the backend "cpp", for any number of
 * threads. Arrays are contiguous and must not overlap; nothing is kept after a call. All functions return 0, or -1 with
 * a sentence in fastfed_last_error() of the same thread; then nothing was written. `threads` 0: as many as OpenMP has.
 *
 * Stable from version 1 on: functions are added, not changed. */
#ifndef FASTFED_H
#define FASTFED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FASTFED_ABI_VERSION 1

int fastfed_abi_version(void);
const char* fastfed_last_error(void);

/* The numbers of a server's step, with v the second moment, m the first:
 *   m = beta1 m + gain1 delta;  v = beta2 v + gain2 q;  x += lr m / (root_scale sqrt(v) + tau)
 * q is m^2, or delta^2 where of_delta is not 0. FedAdam has gain1 = 1 - beta1 and gain2 = 1 - beta2, FedAdagrad
 * beta2 = gain2 = 1 ("adam" as well), FedAvgM is "momentum" with gain1 = 1, FedAvg is "sgd". root_scale is 1 unless
 * moments are corrected for their bias. */
typedef struct {
  double lr, beta1, gain1, beta2, gain2, tau, root_scale;
  int of_delta;
} fastfed_server_numbers;

/* `formula`: "sgd", "momentum", "adam", "yogi" or "ams". Vectors have d elements; m, v and vmax are NULL where the
 * formula has none: sgd has none of them, momentum has m, adam and yogi have m and v, ams has all. With beta1 = 0, m
 * may be NULL (it would equal the delta). Moves x and the moments in place. */
int fastfed_server_step_f32(const char* formula, int64_t d, float* x, const float* delta, float* m, float* v,
                            float* vmax, const fastfed_server_numbers* numbers, int threads);
int fastfed_server_step_f64(const char* formula, int64_t d, double* x, const double* delta, double* m, double* v,
                            double* vmax, const fastfed_server_numbers* numbers, int threads);

/* The same along the sum of weights[i] * rows[i] over the clients, which never exists in memory; rows[i] has d
 * elements. Where `subtract` is not 0, rows are the clients' models, and the sum is of weights[i] * (rows[i] - x). A
 * model in several arrays takes a call for each. */
int fastfed_aggregate_step_f32(const char* formula, int64_t d, float* x, int64_t clients, const float* const* rows,
                               const float* weights, int subtract, float* m, float* v, float* vmax,
                               const fastfed_server_numbers* numbers, int threads);
int fastfed_aggregate_step_f64(const char* formula, int64_t d, double* x, int64_t clients, const double* const* rows,
                               const double* weights, int subtract, double* m, double* v, double* vmax,
                               const fastfed_server_numbers* numbers, int threads);

/* deltas (clients, d): their weighted sum, and the mean of every coordinate without the `trim` smallest and largest. */
int fastfed_weighted_sum_f32(int64_t clients, int64_t d, const float* deltas, const float* weights, float* out,
                             int threads);
int fastfed_trimmed_mean_f32(int64_t clients, int64_t d, const float* deltas, int64_t trim, float* out, int threads);

/* The Euclidean norm of every row of x (rows, d) into out (rows,); clip also scales rows down to norm `limit`. */
int fastfed_norms_f32(int64_t rows, int64_t d, const float* x, double* out, int threads);
int fastfed_clip_f32(int64_t rows, int64_t d, float* x, double limit, double* out, int threads);

#ifdef __cplusplus
}
#endif

#endif
