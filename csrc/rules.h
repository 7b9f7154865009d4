// Every update rule, once, as inline host and device functions: the one C++ definition of the mathematics, read by
// simd/ and cuda/ alike. Its twin is kernels/rules.py, function by function; the tests hold the two against each other.
//
// Complements arrive ready-made (gain = 1 - beta, computed in double), and an absent vector arrives as zero together
// with coefficients that make it vanish exactly, so no rule has variants. No header is included: NVRTC reads this file
// as it is.
//
// A formula stands once more in the list behind its kind, FF_SERVER_FORMULAS or FF_DIRECTIONS, under the name that
// kernels/table.py has for it. Numbers, tables of functions and CUDA kernels are made from the lists.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define FF_FN static __host__ __device__ __forceinline__
#else
#define FF_FN static inline __attribute__((always_inline))  // internal linkage: every SIMD level has its own copy
#endif

namespace fastfed {

// ---- primitives ----------------------------------------------------------------------------------------------------

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
FF_FN float root(float a) { return sqrtf(a); }
FF_FN double root(double a) { return sqrt(a); }
FF_FN double power(double base, double exponent) { return pow(base, exponent); }
#else
FF_FN float root(float a) { return __builtin_sqrtf(a); }
FF_FN double root(double a) { return __builtin_sqrt(a); }
FF_FN double power(double base, double exponent) { return __builtin_pow(base, exponent); }
#endif
// A NaN on either side is passed on, as torch does.
template <class T> FF_FN T larger(T a, T b) { return a > b || a != a ? a : b; }
template <class T> FF_FN T smaller(T a, T b) { return a < b || a != a ? a : b; }
template <class T> FF_FN T sign_of(T a) { return T(a > T(0)) - T(a < T(0)); }

// ---- pieces --------------------------------------------------------------------------------------------------------

template <class T> FF_FN T first_moment(T m, T g, T beta1, T gain1) { return beta1 * m + gain1 * g; }

template <class T> FF_FN T second_moment(T v, T q, T beta2, T gain2) { return beta2 * v + gain2 * q; }

template <class T> FF_FN T yogi_moment(T v, T q, T gain2) { return v - gain2 * q * sign_of(v - q); }

template <class T> FF_FN T preconditioned(T m, T v, T eps, T root_scale) { return m / (root(v) * root_scale + eps); }

template <class T> FF_FN T corrected_gradient(T g, T x, T anchor, T correction, T weight_decay, T prox, T scale) {
  return scale * (g + weight_decay * x + prox * (x - anchor) + correction);
}

template <class T> FF_FN T moved(T x, T direction, T step) { return x - step * direction; }

template <class T> FF_FN T change(T g, T g_prev) { return g - g_prev; }

template <class T> FF_FN T mean_of_kept(T inner, T low, T high, T low_count, T high_count, T count) {
  return low == high ? low + inner : (inner + low * low_count + high * high_count) / count;
}

// ---- server rules --------------------------------------------------------------------------------------------------

// What a server formula reads beside its vectors, in the order of kernels/table.py: ServerScalars.
#define FF_SERVER_NUMBERS(DO) \
  DO(lr)                      \
  DO(beta1)                   \
  DO(gain1)                   \
  DO(beta2)                   \
  DO(gain2)                   \
  DO(tau)                     \
  DO(root_scale)
template <class T> struct ServerNumbers {
#define FF_FIELD(name) T name;
  FF_SERVER_NUMBERS(FF_FIELD)
#undef FF_FIELD
};

// x and the moments of one coordinate after one step along the aggregated delta. OfDelta: the second moment follows the
// raw delta, else the smoothed one.
struct ServerSgd {
  static constexpr bool has_m = false, has_v = false, has_vmax = false;
  template <bool OfDelta, class T> FF_FN void step(T& x, T delta, T&, T&, T&, const ServerNumbers<T>& n) {
    x = x + n.lr * delta;
  }
};

struct ServerMomentum {
  static constexpr bool has_m = true, has_v = false, has_vmax = false;
  template <bool OfDelta, class T> FF_FN void step(T& x, T delta, T& m, T&, T&, const ServerNumbers<T>& n) {
    m = first_moment(m, delta, n.beta1, n.gain1);
    x = x + n.lr * m;
  }
};

struct ServerAdam {
  static constexpr bool has_m = true, has_v = true, has_vmax = false;
  template <bool OfDelta, class T> FF_FN void step(T& x, T delta, T& m, T& v, T&, const ServerNumbers<T>& n) {
    m = first_moment(m, delta, n.beta1, n.gain1);
    const T q = OfDelta ? delta * delta : m * m;
    v = second_moment(v, q, n.beta2, n.gain2);
    x = x + n.lr * preconditioned(m, v, n.tau, n.root_scale);
  }
};

struct ServerYogi {
  static constexpr bool has_m = true, has_v = true, has_vmax = false;
  template <bool OfDelta, class T> FF_FN void step(T& x, T delta, T& m, T& v, T&, const ServerNumbers<T>& n) {
    m = first_moment(m, delta, n.beta1, n.gain1);
    const T q = OfDelta ? delta * delta : m * m;
    v = yogi_moment(v, q, n.gain2);
    x = x + n.lr * preconditioned(m, v, n.tau, n.root_scale);
  }
};

struct ServerAms {
  static constexpr bool has_m = true, has_v = true, has_vmax = true;
  template <bool OfDelta, class T> FF_FN void step(T& x, T delta, T& m, T& v, T& vmax, const ServerNumbers<T>& n) {
    m = first_moment(m, delta, n.beta1, n.gain1);
    const T q = OfDelta ? delta * delta : m * m;
    v = second_moment(v, q, n.beta2, n.gain2);
    vmax = larger(vmax, v);
    x = x + n.lr * preconditioned(m, vmax, n.tau, n.root_scale);
  }
};

#define FF_SERVER_FORMULAS(DO) \
  DO(sgd, ServerSgd)           \
  DO(momentum, ServerMomentum) \
  DO(adam, ServerAdam)         \
  DO(yogi, ServerYogi)         \
  DO(ams, ServerAms)

// ---- client directions ---------------------------------------------------------------------------------------------

// What one client's elements share in one step; keep is 0 where the update floor takes this step's m away, else 1.
template <class T> struct DirectionNumbers {
  T beta1, gain1, beta2, gain2, eps, root_eps, root_scale, keep;
};

// The direction of one coordinate; m is updated, v is this step's second moment already. corrects_bias: the step and v
// are divided by what running means that started at zero fall short of.
struct DirectionSgd {
  static constexpr bool has_m = false, has_v = false, corrects_bias = false;
  template <class T> FF_FN T of(T g, T&, T, const DirectionNumbers<T>&) { return g; }
};

struct DirectionMomentum {
  static constexpr bool has_m = true, has_v = false, corrects_bias = false;
  template <class T> FF_FN T of(T g, T& m, T, const DirectionNumbers<T>& n) {
    m = first_moment(m, g, n.beta1, n.gain1);
    return m;
  }
};

struct DirectionAdagrad {
  // m only in SM3's reference form, where the state carries it
  static constexpr bool has_m = false, has_v = true, corrects_bias = false;
  template <class T> FF_FN T of(T g, T& m, T v, const DirectionNumbers<T>& n) {
    m = n.keep * first_moment(m, preconditioned(g, v + n.root_eps, n.eps, n.root_scale), n.beta1, n.gain1);
    return m;
  }
};

struct DirectionAdam {
  static constexpr bool has_m = true, has_v = true, corrects_bias = true;
  template <class T> FF_FN T of(T g, T& m, T v, const DirectionNumbers<T>& n) {
    m = n.keep * first_moment(m, g, n.beta1, n.gain1);
    return preconditioned(m, v + n.root_eps, n.eps, n.root_scale);
  }
};

#define FF_DIRECTIONS(DO)         \
  DO(sgd, DirectionSgd)           \
  DO(momentum, DirectionMomentum) \
  DO(adagrad, DirectionAdagrad)   \
  DO(adam, DirectionAdam)

// ---- numbers per client (double) -----------------------------------------------------------------------------------

FF_FN double bias(double beta, double count) { return 1.0 - power(beta, count); }

FF_FN bool refreshes_at(long long clock, long long delay) { return (clock - 1) % delay == 0; }

FF_FN double clip_scale(double norm, double clip) { return clip / larger(norm, clip); }

FF_FN double floor_keep(double norm, double floor) { return norm > 0.0 && norm < floor ? 0.0 : 1.0; }

struct StepSize {
  double step, ratio;
};

FF_FN StepSize delta_sgd_step_size(double move, double changed, double lr, double theta, double gamma, double delta,
                                   double lr_eps) {
  const double grown = root(1.0 + delta * theta) * lr;
  const bool measurable = move > 0.0 && changed > 0.0;
  const double step = measurable ? smaller(gamma * move / (2.0 * changed), grown) + lr_eps : grown;
  return {step, step / lr};
}

FF_FN double sps_step_size(double loss, double square_norm, double c, double f_star, double lr_max, double eps) {
  const double gap = larger(loss - f_star, 0.0), scale = c * square_norm + eps;
  return scale > 0.0 ? smaller(gap / scale, lr_max) : 0.0;
}

}  // namespace fastfed
