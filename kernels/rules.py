"""Every update rule, once, as plain scalar functions: the one Python definition of the mathematics.

`bind.py` loads this file once per backend with ``sqrt``, ``maximum``, ``minimum``, ``where`` and ``sign`` bound to that
backend's own: torch (``reference``: whole tensors, any dtype), math (``numba``: scalars) and Triton (blocks). The C++
twin is ``csrc/rules.h``; the tests hold the two against each other.

Two conventions keep a single source right in every type system. No numeric literal meets an element (a literal would
widen float32 under numba), so complements arrive ready-made: ``gain = 1 - beta``, computed in double on the host. And
an absent vector arrives as zero together with coefficients that make it vanish exactly, so no rule has variants.
"""

# ruff: noqa: F821  (the five names above are bound by the loader)
# mypy: ignore-errors


# ---- pieces ---------------------------------------------------------------------------------------------------------


def first_moment(m, g, beta1, gain1):
    """Running mean (``gain1 = 1 - beta1``) or running sum (``gain1 = 1``: heavy-ball momentum) of g."""
    return beta1 * m + gain1 * g


def second_moment(v, q, beta2, gain2):
    """Running mean of the squares q; AdaGrad's running sum is ``beta2 = gain2 = 1``."""
    return beta2 * v + gain2 * q


def yogi_moment(v, q, gain2):
    """Yogi's second moment: it moves towards q by at most ``gain2 * q``."""
    return v - gain2 * q * sign(v - q)


def preconditioned(m, v, eps, root_scale):
    """m over the root of v; ``root_scale`` carries v's bias correction."""
    return m / (sqrt(v) * root_scale + eps)


def corrected_gradient(g, x, anchor, correction, weight_decay, prox, scale):
    """What a client rule sees of g: FedProx pull, SCAFFOLD correction, weight decay, then the clipping scale."""
    return scale * (g + weight_decay * x + prox * (x - anchor) + correction)


def moved(x, direction, step):
    """A client's move: down the direction."""
    return x - step * direction


def change(g, g_prev):
    """What Delta-SGD measures between two gradients."""
    return g - g_prev


def mean_of_kept(inner, low, high, low_count, high_count, count):
    """The mean of `count` numbers from `low` to `high`, each of which is there so often; the others sum to `inner`.

    Where all are equal, so is the mean, without a rounding; `inner` is then 0, or NaN if a number is.
    """
    return where(low == high, low + inner, (inner + low * low_count + high * high_count) / count)


# ---- server rules: (x, m, v, vmax) after one step along the aggregated delta ----------------------------------------
# `n` holds the numbers of the step (ServerScalars of table.py). `of_delta`, which backends compile in, says what the
# second moment follows: the raw delta, or the smoothed one.


def server_sgd(x, delta, m, v, vmax, n, of_delta):
    return x + n.lr * delta, m, v, vmax


def server_momentum(x, delta, m, v, vmax, n, of_delta):
    m = first_moment(m, delta, n.beta1, n.gain1)
    return x + n.lr * m, m, v, vmax


def server_adam(x, delta, m, v, vmax, n, of_delta):
    m = first_moment(m, delta, n.beta1, n.gain1)
    q = delta * delta if of_delta else m * m
    v = second_moment(v, q, n.beta2, n.gain2)
    return x + n.lr * preconditioned(m, v, n.tau, n.root_scale), m, v, vmax


def server_yogi(x, delta, m, v, vmax, n, of_delta):
    m = first_moment(m, delta, n.beta1, n.gain1)
    q = delta * delta if of_delta else m * m
    v = yogi_moment(v, q, n.gain2)
    return x + n.lr * preconditioned(m, v, n.tau, n.root_scale), m, v, vmax


def server_ams(x, delta, m, v, vmax, n, of_delta):
    m = first_moment(m, delta, n.beta1, n.gain1)
    q = delta * delta if of_delta else m * m
    v = second_moment(v, q, n.beta2, n.gain2)
    vmax = maximum(vmax, v)
    return x + n.lr * preconditioned(m, vmax, n.tau, n.root_scale), m, v, vmax


# ---- client directions: (direction, m), v being the second moment of this step already ------------------------------
# `n` holds the numbers that all clients share (DirectionScalars of table.py), the two others are the client's own: what
# corrects v's bias, and `keep`, 0 where the update floor takes this step's m away, else 1.


def direction_sgd(g, m, v, n, root_scale, keep):
    return g, m


def direction_momentum(g, m, v, n, root_scale, keep):
    m = first_moment(m, g, n.beta1, n.gain1)
    return m, m


def direction_adagrad(g, m, v, n, root_scale, keep):
    """With ``beta1 > 0``, m is a running mean of preconditioned gradients; ``root_eps`` is SM3's alone (both as in its
    reference implementation)."""
    m = keep * first_moment(m, preconditioned(g, v + n.root_eps, n.eps, root_scale), n.beta1, n.gain1)
    return m, m


def direction_adam(g, m, v, n, root_scale, keep):
    m = keep * first_moment(m, g, n.beta1, n.gain1)
    return preconditioned(m, v + n.root_eps, n.eps, root_scale), m


# ---- numbers per client (float64) -----------------------------------------------------------------------------------


def bias(beta, count):
    """What a running mean that started at zero falls short of after `count` entries."""
    return 1.0 - beta**count


def refreshes_at(clock, delay):
    """Whether second moments are refreshed at this step (or epoch), counted from 1."""
    return (clock - 1) % delay == 0


def clip_scale(norm, clip):
    """min(1, clip / norm), safe at norm 0."""
    return clip / maximum(norm, clip)


def floor_keep(norm, floor):
    """FedAda2's update floor: 0 if 0 < norm < floor, else 1."""
    return where((norm > 0.0) & (norm < floor), 0.0, 1.0)


def delta_sgd_step_size(move, change, lr, theta, gamma, delta, lr_eps):
    """Delta-SGD's next step size and its ratio to the last; without a usable measurement it only grows."""
    grown = sqrt(1.0 + delta * theta) * lr
    measurable = (move > 0.0) & (change > 0.0)
    measured = gamma * move / (2.0 * where(measurable, change, 1.0))
    step = where(measurable, minimum(measured, grown) + lr_eps, grown)
    return step, step / lr


def sps_step_size(loss, square_norm, c, f_star, lr_max, eps):
    """Stochastic Polyak step size, at most lr_max; a loss below f_star takes no step, a zero gradient cannot."""
    gap = maximum(loss - f_star, 0.0)
    scale = c * square_norm + eps
    nonzero = scale > 0.0
    return where(nonzero, minimum(gap / where(nonzero, scale, 1.0), lr_max), 0.0)


# ---- numbers of the server step -------------------------------------------------------------------------------------


def server_scales(lr, beta1, beta2, step):
    """(lr, root_scale) with the AFO authors' bias correction: tau joins the *uncorrected* root."""
    return lr * sqrt(bias(beta2, step)) / bias(beta1, step), 1.0


def server_scales_corrected(lr, beta1, beta2, step):
    """(lr, root_scale) with the bias correction of FedAMS's authors and of torch: tau joins the corrected root."""
    return lr / bias(beta1, step), 1.0 / sqrt(bias(beta2, step))
