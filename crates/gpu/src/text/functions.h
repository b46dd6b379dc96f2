
// ==== functions.h: functions of elements, by the meaning that ir/src/ops/function.rs gives them ======================

#define NOT_A_NUMBER float_of(0x7fc00000u)

DEVICE u64 bits_of(f64 x) {
    union { f64 f; u64 u; } both;
    both.f = x;
    return both.u;
}

DEVICE bool is_negative(f32 x) { return (bits_of(x) >> 31) != 0; }
DEVICE bool is_negative(f64 x) { return (bits_of(x) >> 63) != 0; }

#define FUNCTION_OF_ONE(name)                                                                                         \
    DEVICE f32 of_##name(f32 x) { return name##f(x); }                                                                \
    DEVICE f64 of_##name(f64 x) { return name(x); }
FUNCTION_OF_ONE(exp)
FUNCTION_OF_ONE(expm1)
FUNCTION_OF_ONE(log)
FUNCTION_OF_ONE(log1p)
FUNCTION_OF_ONE(sin)
FUNCTION_OF_ONE(cos)
FUNCTION_OF_ONE(tan)
FUNCTION_OF_ONE(asin)
FUNCTION_OF_ONE(acos)
FUNCTION_OF_ONE(atan)
FUNCTION_OF_ONE(sinh)
FUNCTION_OF_ONE(cosh)
FUNCTION_OF_ONE(tanh)
FUNCTION_OF_ONE(asinh)
FUNCTION_OF_ONE(acosh)
FUNCTION_OF_ONE(atanh)
FUNCTION_OF_ONE(erf)
FUNCTION_OF_ONE(erfc)
FUNCTION_OF_ONE(ceil)
FUNCTION_OF_ONE(floor)
FUNCTION_OF_ONE(rint)
FUNCTION_OF_ONE(trunc)
FUNCTION_OF_ONE(sqrt)
FUNCTION_OF_ONE(fabs)
#undef FUNCTION_OF_ONE
DEVICE f32 of_pow(f32 x, f32 y) { return powf(x, y); }
DEVICE f64 of_pow(f64 x, f64 y) { return pow(x, y); }
DEVICE f32 of_fmod(f32 x, f32 y) { return fmodf(x, y); }
DEVICE f64 of_fmod(f64 x, f64 y) { return fmod(x, y); }
DEVICE f32 of_fma(f32 x, f32 y, f32 z) { return fmaf(x, y, z); }
DEVICE f64 of_fma(f64 x, f64 y, f64 z) { return fma(x, y, z); }

// ---- floats ---------------------------------------------------------------------------------------------------------

template <class T> DEVICE T sign_float(T x) { return x > 0 ? (T)1 : x < 0 ? (T)-1 : x; }
template <class T> DEVICE T relu_float(T x) { return x < 0 ? (T)0 : x; }
template <class T> DEVICE T leaky_float(T x, T alpha) { return x < 0 ? alpha * x : x; }
template <class T> DEVICE T elu_float(T x, T alpha) { return x < 0 ? alpha * of_expm1(x) : x; }
template <class T> DEVICE T celu_float(T x, T alpha) { return x < 0 ? alpha * of_expm1(x / alpha) : x; }
template <class T> DEVICE T clamp_float(T x, T lo, T hi) {
    T raised = x < lo ? lo : x;
    return raised > hi ? hi : raised;
}
// x / 6 + 0.5 would lose the digits of results near 0.
template <class T> DEVICE T hard_swish_float(T x) { return x * clamp_float((x + (T)3) / (T)6, (T)0, (T)1); }
template <class T> DEVICE T sigmoid_float(T x) {
    T tail = of_exp(-of_fabs(x));
    return (x < 0 ? tail : (T)1) / ((T)1 + tail);
}
template <class T> DEVICE T softplus_float(T x) {
    T rest = of_log1p(of_exp(-of_fabs(x)));
    return x > 0 ? x + rest : rest;
}
template <class T> DEVICE T gelu_erf_float(T x) { return (T)0.5 * x * of_erfc(-x * (T)0.70710678118654752440); }
template <class T> DEVICE T gelu_tanh_float(T x) {
    T inner = (T)0.79788456080286535588 * (x + (T)0.044715 * x * x * x);
    return x * sigmoid_float((T)2 * inner);
}
template <class T> DEVICE T swish_float(T x, T alpha) { return x * sigmoid_float(alpha * x); }
template <class T> DEVICE T mish_float(T x) { return x * of_tanh(softplus_float(x)); }
template <class T> DEVICE T shrink_float(T x, T lambda, T bias) {
    return x < -lambda ? x + bias : x > lambda ? x - bias : (T)0;
}
template <class T> DEVICE T mod_float(T a, T b) {
    T rest = of_fmod(a, b);
    if (rest == 0) return is_negative(b) ? (T)-0.0 : (T)0;
    return (rest < 0) != (b < 0) ? rest + b : rest;
}
// NaN if either is; -0 lies below 0.
template <class T> DEVICE T min_float(T a, T b) { return a != a || a < b || (a == b && is_negative(a)) ? a : b; }
template <class T> DEVICE T max_float(T a, T b) { return a != a || a > b || (a == b && !is_negative(a)) ? a : b; }

// ---- integers: all arithmetic wraps ---------------------------------------------------------------------------------

template <class T> struct Wide {
    typedef u32 type;
};
template <> struct Wide<i64> {
    typedef u64 type;
};
template <> struct Wide<u64> {
    typedef u64 type;
};

template <class T> DEVICE T add_int(T a, T b) { return (T)((typename Wide<T>::type)a + (typename Wide<T>::type)b); }
template <class T> DEVICE T sub_int(T a, T b) { return (T)((typename Wide<T>::type)a - (typename Wide<T>::type)b); }
template <class T> DEVICE T mul_int(T a, T b) { return (T)((typename Wide<T>::type)a * (typename Wide<T>::type)b); }
template <class T> DEVICE T neg_int(T a) { return sub_int((T)0, a); }
template <class T> DEVICE T abs_int(T a) { return a < 0 ? neg_int(a) : a; }
template <class T> DEVICE T sign_int(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : (T)0; }
template <class T> DEVICE T min_int(T a, T b) { return a < b ? a : b; }
template <class T> DEVICE T max_int(T a, T b) { return a > b ? a : b; }
template <class T> DEVICE T div_int(T a, T b) {
    if (b == 0) return 0;
    if (b == (T)-1 && (T)-1 < 0) return neg_int(a);
    return a / b;
}
template <class T> DEVICE T rem_int(T a, T b) {
    if (b == 0 || (b == (T)-1 && (T)-1 < 0)) return 0;
    return a % b;
}
template <class T> DEVICE T mod_int(T a, T b) {
    T rest = rem_int(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? (T)(rest + b) : rest;
}
template <class T> DEVICE T shl_int(T a, T b) {
    bool is_within = b >= 0 && (u64)b < 8 * sizeof(T);
    return is_within ? (T)((typename Wide<T>::type)a << b) : (T)0;
}
template <class T> DEVICE T shr_int(T a, T b) {
    bool is_within = b >= 0 && (u64)b < 8 * sizeof(T);
    return is_within ? (T)(a >> b) : a < 0 ? (T)-1 : (T)0;
}
template <class T> DEVICE T power(T base, bool is_exponent_negative, u64 exponent) {
    if (is_exponent_negative) {
        if (base == 1) return 1;
        if (base == (T)-1 && (T)-1 < 0) return exponent % 2 == 0 ? (T)1 : (T)-1;
        return 0;
    }
    T result = 1, square = base;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = mul_int(result, square);
        square = mul_int(square, square);
    }
    return result;
}
template <class T, class E> DEVICE T pow_int(T base, E exponent) {
    return power(base, exponent < 0, exponent < 0 ? 0ull - (u64)exponent : (u64)exponent);
}

// ---- conversions ----------------------------------------------------------------------------------------------------

template <class T> struct IntRange;
template <> struct IntRange<i8> {
    static constexpr i64 least = -128, most = 127;
    static constexpr f64 end = 128.0;
};
template <> struct IntRange<u8> {
    static constexpr i64 least = 0, most = 255;
    static constexpr f64 end = 256.0;
};
template <> struct IntRange<i16> {
    static constexpr i64 least = -32768, most = 32767;
    static constexpr f64 end = 32768.0;
};
template <> struct IntRange<u16> {
    static constexpr i64 least = 0, most = 65535;
    static constexpr f64 end = 65536.0;
};
template <> struct IntRange<i32> {
    static constexpr i64 least = -2147483647ll - 1, most = 2147483647ll;
    static constexpr f64 end = 2147483648.0;
};
template <> struct IntRange<u32> {
    static constexpr i64 least = 0, most = 4294967295ll;
    static constexpr f64 end = 4294967296.0;
};
template <> struct IntRange<i64> {
    static constexpr i64 least = -9223372036854775807ll - 1, most = 9223372036854775807ll;
    static constexpr f64 end = 9223372036854775808.0;
};
template <> struct IntRange<u64> {
    static constexpr i64 least = 0;
    static constexpr u64 most = ~0ull;
    static constexpr f64 end = 18446744073709551616.0;
};

// Truncates toward zero; beyond the range the nearest end, and 0 for NaN.
template <class T, class F> DEVICE T to_int(F x) {
    if (x != x) return 0;
    if (x < (F)IntRange<T>::least) return (T)IntRange<T>::least;
    if (x >= (F)IntRange<T>::end) return (T)IntRange<T>::most;
    return (T)x;
}
// The same with the ends of a narrower type.
template <class T, class F> DEVICE T to_int_within(F x, int least, int most) {
    if (x != x) return 0;
    return x < (F)least ? (T)least : x > (F)most ? (T)most : (T)x;
}

// The lowest bits of the whole number that x is cut to, as 128 bits hold it: beyond 64 of them a float has none below.
template <class F> DEVICE i64 to_low_bits(F x) {
    if (x >= (F)1.7014118346046923e38) return -1;
    return x > (F)-9.2e18 && x < (F)9.2e18 ? (i64)x : 0;
}

template <class T, class E> DEVICE T pow_int_by_float(T base, E exponent) {
    bool is_whole = exponent == of_trunc(exponent) && of_fabs(exponent) < (E)9223372036854775808.0;
    if (is_whole) return pow_int(base, (i64)exponent);
    return (T)to_int<i64>(of_pow((f64)base, (f64)exponent));
}

// The f32 that rounds to a 16-bit float as the wider number itself would: what f32 has no room for is kept as an odd last bit.
DEVICE f32 to_odd_f32(f64 x) {
    f32 y = (f32)x;
    if (x != x || (f64)y == x) return y;
    u32 bits = bits_of(y);
    if (of_fabs((f64)y) > of_fabs(x)) bits -= 1;
    return float_of(bits | 1u);
}
DEVICE f32 to_odd_f32(u64 magnitude, bool is_negative) {
    int dropped = 0;
    u64 kept = magnitude;
    while (kept >> 24) {
        kept = (kept >> 1) | (kept & 1);
        dropped += 1;
    }
    f32 y = (f32)kept * float_of((u32)(127 + dropped) << 23);
    return is_negative ? -y : y;
}
DEVICE f32 to_odd_f32(i64 x) { return to_odd_f32(x < 0 ? 0ull - (u64)x : (u64)x, x < 0); }
DEVICE f32 to_odd_f32(u64 x) { return to_odd_f32(x, false); }
DEVICE f32 to_odd_f32(i32 x) { return to_odd_f32((i64)x); }
DEVICE f32 to_odd_f32(u32 x) { return to_odd_f32((u64)x, false); }

DEVICE f32 round_f16(f32 x) { return to_f32(to_f16(x)); }
DEVICE f32 round_bf16(f32 x) { return to_f32(to_bf16(x)); }

// ---- indices --------------------------------------------------------------------------------------------------------

// An index of an axis: negative ones count from the end. The host cannot see an index that is out of range while kernels
// run, so it becomes the nearest one within.
DEVICE i64 axis_index(i64 index, i64 extent) {
    i64 at = index < 0 ? index + extent : index;
    return at < 0 ? 0 : at >= extent ? extent - 1 : at;
}

// ---- teams: threads that combine what each of them has --------------------------------------------------------------

struct Add {
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const { return a + b; }
};
struct Multiply {
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const { return a * b; }
};
struct LesserInt {
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const { return a < b ? a : b; }
};
struct GreaterInt {
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const { return a > b ? a : b; }
};
struct LesserFloat {
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const { return min_float(a, b); }
};
struct GreaterFloat {
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const { return max_float(a, b); }
};
// The larger number, NaN left aside.
struct GreaterNumber {
    template <class T> DEVICE_MEMBER T operator()(T a, T b) const { return b != b || a > b ? a : b; }
};

// Combines the values of LANES consecutive threads, which all get the result. LANES and WARP are powers of 2; `shared`
// has room for one value of every warp of the block. All threads of the block take part.
template <int LANES, class T, class F> DEVICE T combine_lanes(T x, F combine, T *shared) {
    UNROLL
    for (int mask = 1; mask < (LANES < WARP ? LANES : WARP); mask <<= 1) x = combine(x, shuffle_xor(x, mask));
    if (LANES <= WARP) return x;
    sync_block();
    if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP] = x;
    sync_block();
    int first = threadIdx.x / LANES * (LANES / WARP);
    x = shared[first];
    for (int warp = 1; warp < LANES / WARP; warp++) x = combine(x, shared[first + warp]);
    return x;
}

// Combines the values of threads that are COLUMNS apart: thread t holds lane t / COLUMNS of column t % COLUMNS. `shared`
// has room for a value of every thread.
template <int COLUMNS, int LANES, class T, class F> DEVICE T combine_columns(T x, F combine, T *shared) {
    if (LANES == 1) return x;
    sync_block();
    shared[threadIdx.x] = x;
    sync_block();
    for (int step = LANES / 2; step > 0; step >>= 1) {
        if (threadIdx.x < step * COLUMNS)
            shared[threadIdx.x] = combine(shared[threadIdx.x], shared[threadIdx.x + step * COLUMNS]);
        sync_block();
    }
    return shared[threadIdx.x % COLUMNS];
}
