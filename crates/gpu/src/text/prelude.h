// What every kernel text starts from: types, conversions, warp exchange, matrix instructions, and the arguments of a
// kernel. The same text compiles for CUDA (NVRTC), for HIP (HIPRTC) and, with PRECAST_HOST, for the CPU, where a small
// scheduler runs the threads of a block as fibers, so that kernels are tested without a GPU.
// The lines before it define WARP (32 or 64) and INDIRECT (words; bit i: argument i is the address of a pointer).

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;

#if defined(PRECAST_HOST)
#define DEVICE static inline
#define DEVICE_MEMBER inline
#elif defined(__HIPCC_RTC__) || defined(__HIP__)
#define PRECAST_HIP 1
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#else
#define PRECAST_CUDA 1
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#endif

#if defined(PRECAST_HOST)
#include "host.h"
#elif defined(PRECAST_CUDA)
#define KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#define KERNEL_FLAT(name, threads, ...) KERNEL(name, threads, __VA_ARGS__)
#define SHARED(type, name, count) __shared__ type name[count]
#define SHARED_BYTES(name) extern __shared__ __align__(1024) u8 name[]
#define UNROLL _Pragma("unroll")
#else
#define KERNEL(name, threads, ...) extern "C" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#define KERNEL_FLAT(name, threads, ...) KERNEL(name, threads, __VA_ARGS__)
#define SHARED(type, name, count) __shared__ type name[count]
#define SHARED_BYTES(name) extern __shared__ u8 name[]
#define UNROLL _Pragma("unroll")
#endif

#define INFINITE float_of(0x7f800000u)

// ---- bits -----------------------------------------------------------------------------------------------------------

DEVICE u32 bits_of(f32 x) {
    union { f32 f; u32 u; } both;
    both.f = x;
    return both.u;
}

DEVICE f32 float_of(u32 x) {
    union { u32 u; f32 f; } both;
    both.u = x;
    return both.f;
}

// ---- 16-bit floats --------------------------------------------------------------------------------------------------

struct f16 {
    u16 bits;
};

struct bf16 {
    u16 bits;
};

DEVICE f32 to_f32(f16 x) {
#if defined(PRECAST_CUDA)
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    union { u16 u; _Float16 f; } both;
    both.u = x.bits;
    return (f32)both.f;
#endif
}

DEVICE f16 to_f16(f32 x) {
    f16 y;
#if defined(PRECAST_CUDA)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    union { u16 u; _Float16 f; } both;
    both.f = (_Float16)x;
    y.bits = both.u;
#endif
    return y;
}

DEVICE f32 to_f32(bf16 x) { return float_of((u32)x.bits << 16); }

DEVICE bf16 to_bf16(f32 x) {
    u32 bits = bits_of(x);
    bf16 y;
    bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
    y.bits = (u16)((is_nan ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
    return y;
}

DEVICE f32 to_f32(f32 x) { return x; }

// Stores an f32 as the element type of the place.
DEVICE void put(f32 *place, f32 x) { *place = x; }
DEVICE void put(f16 *place, f32 x) { *place = to_f16(x); }
DEVICE void put(bf16 *place, f32 x) { *place = to_bf16(x); }

// ---- several elements at once ---------------------------------------------------------------------------------------

template <class T, int N> struct alignas(sizeof(T) * N) Vec {
    T at[N];
};

template <int N, class T> DEVICE Vec<T, N> load_vec(const T *from) { return *(const Vec<T, N> *)from; }
template <int N, class T> DEVICE void store_vec(T *to, const Vec<T, N> &x) { *(Vec<T, N> *)to = x; }

// ---- rows of the caller's buffers -----------------------------------------------------------------------------------

// What a whole buffer is said to have: more than anyone reads, and whole elements of any size.
constexpr u64 WHOLE_BYTES = 1ull << 62;

// What a kernel finds in the table for a caller's buffer: its address, and, where it has fewer rows than the Program, how many
// bytes it has and how many are missing.
struct CallersRows {
    u64 start, end_bytes, missing_bytes;
};

// A caller's buffer that is read. Beyond its end come its last rows once more.
template <class T> struct SourceRows {
    const T *start;
    u64 end, missing, offset;

    DEVICE_MEMBER const T *place(u64 at) const { return start + (at < end ? at : at - missing); }
    template <class I> DEVICE_MEMBER T operator[](I by) const { return *place(offset + by); }
    template <class I> DEVICE_MEMBER SourceRows operator+(I by) const { return {start, end, missing, offset + by}; }
};

// A caller's buffer that is written. Nothing is written beyond its end.
template <class T> struct TargetElement {
    T *place;
    bool is_in;
    DEVICE_MEMBER void operator=(T x) const {
        if (is_in) *place = x;
    }
};
template <class T> struct TargetRows {
    T *start;
    u64 end, offset;

    template <class I> DEVICE_MEMBER TargetElement<T> operator[](I by) const { return {start + offset + by, offset + by < end}; }
    template <class I> DEVICE_MEMBER TargetRows operator+(I by) const { return {start, end, offset + by}; }
};

// Where the elements of a row begin.
template <class T> DEVICE const T *row_start(const T *row) { return row; }
template <class T> DEVICE const T *row_start(const SourceRows<T> &row) { return row.place(row.offset); }

// Several elements at once, one by one where rows are no multiples of them.
template <int N, class T> DEVICE Vec<T, N> load_vec(const SourceRows<T> &from) {
    if (((from.end | from.missing) & (N - 1)) == 0) return load_vec<N>(from.place(from.offset));
    Vec<T, N> x;
    UNROLL for (int i = 0; i < N; i++) x.at[i] = from[i];
    return x;
}
template <int N, class T> DEVICE void store_vec(const TargetRows<T> &to, const Vec<T, N> &x) {
    if (to.offset + N <= to.end) store_vec<N>(to.start + to.offset, x);
    else UNROLL for (int i = 0; i < N; i++) to[i] = x.at[i];
}
template <class T> DEVICE void put(const TargetRows<T> &to, f32 x) {
    if (to.offset < to.end) put(to.start + to.offset, x);
}

// ---- arguments ------------------------------------------------------------------------------------------------------

template <class T> struct RowsOf {
    typedef TargetRows<T> Rows;
    static DEVICE_MEMBER Rows of(const CallersRows &rows) { return {(T *)rows.start, rows.end_bytes / sizeof(T), 0}; }
};
template <class T> struct RowsOf<const T> {
    typedef SourceRows<T> Rows;
    static DEVICE_MEMBER Rows of(const CallersRows &rows) {
        return {(const T *)rows.start, rows.end_bytes / sizeof(T), rows.missing_bytes / sizeof(T), 0};
    }
};

// An argument that threads of a warp choose apart and then read together: a read by each branch would wait by itself.
template <class T> struct Chosen {
    const void *place;
    bool is_indirect;
    DEVICE_MEMBER T *get() const { return is_indirect ? (T *)((const CallersRows *)place)->start : (T *)place; }
    DEVICE_MEMBER typename RowsOf<T>::Rows rows() const {
        CallersRows whole = {(u64)place, WHOLE_BYTES, 0};
        return RowsOf<T>::of(is_indirect ? *(const CallersRows *)place : whole);
    }
};

template <class T, bool IS_INDIRECT> struct ArgOf;
template <class T> struct ArgOf<T, false> {
    typedef T *Rows;
    typedef T *__restrict__ OwnRows;
    T *pointer;
    DEVICE_MEMBER T *get() const { return pointer; }
    DEVICE_MEMBER T *rows() const { return pointer; }
    DEVICE_MEMBER Chosen<T> choose() const { return {pointer, false}; }
};
template <class T> struct ArgOf<T, true> {
    typedef typename RowsOf<T>::Rows Rows;
    typedef Rows OwnRows;
    const CallersRows *entry;
    DEVICE_MEMBER T *get() const { return (T *)entry->start; }
    DEVICE_MEMBER Rows rows() const { return RowsOf<T>::of(*entry); }
    DEVICE_MEMBER Chosen<T> choose() const { return {entry, true}; }
};
// Argument I of a kernel, a pointer to T: passed itself, or, for the caller's buffers, as the address of a table's entry.
constexpr u64 INDIRECT_WORDS[] = {INDIRECT};
constexpr int INDIRECT_BITS = sizeof(INDIRECT_WORDS) * 8;
template <class T, int I> using Arg = ArgOf<T, I < INDIRECT_BITS && ((INDIRECT_WORDS[I < INDIRECT_BITS ? I / 64 : 0] >> (I % 64)) & 1ull) != 0>;

// ---- warps ----------------------------------------------------------------------------------------------------------

#if defined(PRECAST_CUDA)
template <class T> DEVICE T shuffle_xor(T x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
template <class T> DEVICE T shuffle(T x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
template <class T> DEVICE T shuffle_up(T x, int by) { return __shfl_up_sync(0xffffffffu, x, by); }
template <class T> DEVICE T shuffle_down(T x, int by) { return __shfl_down_sync(0xffffffffu, x, by); }
DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __syncwarp(); }
DEVICE void atomic_max(i32 *place, i32 x) { atomicMax(place, x); }
// Gives what was there before.
DEVICE u32 atomic_add(u32 *place, u32 x) { return atomicAdd(place, x); }
#elif defined(PRECAST_HIP)
template <class T> DEVICE T shuffle_xor(T x, int mask) { return __shfl_xor(x, mask); }
template <class T> DEVICE T shuffle(T x, int lane) { return __shfl(x, lane); }
template <class T> DEVICE T shuffle_up(T x, int by) { return __shfl_up(x, by); }
template <class T> DEVICE T shuffle_down(T x, int by) { return __shfl_down(x, by); }
DEVICE void sync_block() { __syncthreads(); }
DEVICE void sync_warp() { __builtin_amdgcn_wave_barrier(); }
DEVICE void atomic_max(i32 *place, i32 x) { atomicMax(place, x); }
// Gives what was there before.
DEVICE u32 atomic_add(u32 *place, u32 x) { return atomicAdd(place, x); }
#endif

// ---- launches that overlap ------------------------------------------------------------------------------------------

// A launch that the driver was told to start before the last one has ended must not touch what that one reads or writes
// before `wait_for_last`, which every thread that computes calls. Constants may be read before. `start_next` lets the next
// such launch start; only short kernels call it, since the blocks of the next launch would take the places of a long
// one's (ResNet-50 took 383 instead of 312 us when all did). Both do nothing for launches in plain order.
#if defined(PRECAST_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEVICE void start_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
DEVICE void wait_for_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
DEVICE void start_next() {}
DEVICE void wait_for_last() {}
#endif
