// Matrix instructions and what feeds them: asynchronous copies to shared memory, loads of 8x8 matrices, 16-bit products
// that accumulate in f32, and the shared memory of neighbouring blocks. Follows the prelude. AMD's kernels do without.

template <class T> struct IsBf16 {
    static constexpr bool VALUE = false;
};
template <> struct IsBf16<bf16> {
    static constexpr bool VALUE = true;
};

// The first and the second of two 16-bit floats.
template <class T> DEVICE f32 low_of(u32 pair) {
    T x;
    x.bits = (u16)pair;
    return to_f32(x);
}
template <class T> DEVICE f32 high_of(u32 pair) { return low_of<T>(pair >> 16); }

#if defined(PRECAST_CUDA)

DEVICE u32 shared_address(const void *place) {
    u32 address;
    asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(address) : "l"(place));
    return address;
}

// Starts a copy of BYTES (4, 8, 16) bytes; zeros where `is_in` is false. `from` must be a valid address either way.
template <int BYTES> DEVICE void copy_async(void *to, const void *from, bool is_in) {
    u32 bytes = is_in ? BYTES : 0;
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from), "n"(BYTES),
                     "r"(bytes)
                     : "memory");
}

// Ends a group of copies.
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups are under way.
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four 8x8 matrices of 16-bit elements; lane 8i+j gives the address of row j of matrix i. Lane 4g+t receives elements 2t and
// 2t+1 of row g.
DEVICE void load_matrices(u32 (&x)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, transposed: lane 4g+t receives elements g of rows 2t and 2t+1.
DEVICE void load_matrices_transposed(u32 (&x)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// x * y + z of two 16-bit floats at once, rounded once.
template <class T> DEVICE u32 multiply_add_pairs(u32 x, u32 y, u32 z) {
    u32 pair;
    if constexpr (IsBf16<T>::VALUE) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(x), "r"(y), "r"(z));
    else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(x), "r"(y), "r"(z));
    return pair;
}

// Two floats as 16-bit ones, the first in the lower bits.
template <class T> DEVICE u32 pair_of(f32 low, f32 high) {
    u32 pair;
    if constexpr (IsBf16<T>::VALUE) asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// c[16x8] += a[16x16] · b[16x8]. Of a, lane 4g+t has elements 2t and 2t+1 of rows g and g+8, then those 8 further on; of b
// those of column g; of c elements 2t and 2t+1 of rows g and g+8.
template <class T> DEVICE void multiply_add(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (IsBf16<T>::VALUE)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A part of a tile in shared memory for the instructions of a group of four warps: lines of 128 bytes, eight of them in 1,024
// bytes, pieces exchanged as by `piece_at<8>`. The tile must begin at a multiple of 1,024 bytes.
struct GroupTile {
    u64 bits;
};

// `across`: bytes from one block of 64 columns to the next, of a tile by columns; `along`: from eight lines to the next eight.
DEVICE GroupTile group_tile(const void *part, u32 across, u32 along) {
    constexpr u64 EXCHANGED_IN_128_BYTES = 1;
    u64 start = (shared_address(part) & 0x3ffff) >> 4;
    return {start | (u64)(across >> 4) << 16 | (u64)(along >> 4) << 32 | EXCHANGED_IN_128_BYTES << 62};
}

// Lets instructions of groups see what this thread wrote or copied to shared memory; a barrier has to follow.
DEVICE void show_groups() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Begins instructions of a group, after its registers were written.
DEVICE void begin_groups() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_groups() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most N of this group's committed instructions are under way.
template <int N> DEVICE void wait_groups() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// Waits for all threads of the cluster.
DEVICE void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// The same place in the shared memory of block `rank` of the cluster.
template <class T> DEVICE const T *in_cluster(const T *place, u32 rank) {
    u64 address;
    asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(place), "r"(rank));
    return (const T *)address;
}

#define KERNEL_CLUSTER(name, threads, size, ...)                                                                      \
    extern "C" __global__ void __cluster_dims__(1, 1, size) __launch_bounds__(threads) name(__VA_ARGS__)
// A kernel whose launch makes all blocks along the third axis of the grid a cluster.
#define KERNEL_CLUSTERED(name, threads, ...) KERNEL(name, threads, __VA_ARGS__)
// A kernel that takes no more registers than leave room for a second block on a multiprocessor.
#define KERNEL_PAIRED(name, threads, ...)                                                                             \
    extern "C" __global__ void __launch_bounds__(threads, 2) name(__VA_ARGS__)

#elif defined(PRECAST_HOST)

template <int BYTES> static void copy_async(void *to, const void *from, bool is_in) {
    if ((u64)to % BYTES != 0 || (is_in && (u64)from % BYTES != 0)) {
        fprintf(stderr, "precast kernel: an asynchronous copy is not aligned\n");
        abort();
    }
    host::add_copy({to, from, BYTES, is_in, false});
}
static void copy_commit() { host::add_copy({nullptr, nullptr, 0, false, true}); }
template <int N> static void copy_wait() { host::finish_copies(N); }

static void load_matrices(u32 (&x)[4], const void *row) {
    int turn = host::show((const u16 *)row);
    u32 lane = host::current % WARP;
    for (u32 i = 0; i < 4; i++) {
        const u16 *from = host::lane_slot<const u16 *>(8 * i + lane / 4, turn) + lane % 4 * 2;
        x[i] = from[0] | (u32)from[1] << 16;
    }
}
static void load_matrices_transposed(u32 (&x)[4], const void *row) {
    int turn = host::show((const u16 *)row);
    u32 lane = host::current % WARP;
    for (u32 i = 0; i < 4; i++) {
        u32 first = 8 * i + lane % 4 * 2;
        x[i] = host::lane_slot<const u16 *>(first, turn)[lane / 4] |
               (u32)host::lane_slot<const u16 *>(first + 1, turn)[lane / 4] << 16;
    }
}

template <class T> static u32 pair_of(f32 low, f32 high) {
    T pair[2];
    put(&pair[0], low);
    put(&pair[1], high);
    return pair[0].bits | (u32)pair[1].bits << 16;
}
template <class T> static u32 multiply_add_pairs(u32 x, u32 y, u32 z) {
    return pair_of<T>(low_of<T>(x) * low_of<T>(y) + low_of<T>(z), high_of<T>(x) * high_of<T>(y) + high_of<T>(z));
}

struct Fragments {
    u32 a[4], b[2];
};

template <class T> static void multiply_add(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Fragments own = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    int turn = host::show(own);
    u32 lane = host::current % WARP, g = lane / 4, t = lane % 4;
    for (u32 i = 0; i < 4; i++) {
        u32 row_half = i / 2, column = 2 * t + i % 2;
        f32 sum = 0;
        for (u32 k = 0; k < 16; k++) {
            u32 pair = k % 8 / 2, k_half = k / 8;
            u32 left = host::lane_slot<Fragments>(4 * g + pair, turn).a[row_half + 2 * k_half];
            u32 right = host::lane_slot<Fragments>(4 * column + pair, turn).b[k_half];
            sum += low_of<T>(left >> k % 2 * 16) * low_of<T>(right >> k % 2 * 16);
        }
        c[i] += sum;
    }
}

struct GroupTile {
    const u8 *part;
    u32 across, along;

    // Element `k` of line `line` of a tile by rows, or element `line` of row `k` of one by columns.
    template <class T> f32 at(bool is_by_rows, u32 line, u32 k) const {
        u64 offset = part - host::dynamic_shared;
        if (is_by_rows) offset += line / 8 * along + line % 8 * 128 + k * 2;
        else offset += line / 64 * across + line % 64 * 2 + k / 8 * along + k % 8 * 128;
        return to_f32(*(const T *)(host::dynamic_shared + (offset ^ (offset >> 3 & 0x70))));
    }
};
static GroupTile group_tile(const void *part, u32 across, u32 along) { return {(const u8 *)part, across, along}; }
static void show_groups() {}
static void begin_groups() {}
static void commit_groups() {}
template <int N> static void wait_groups() {}

// c[64 x N] += a[64 x 16] · b[16 x N], 128 threads together: lane 4g+t of warp w has elements 2t and 2t+1 of rows 16w+g and
// 16w+g+8, then those 8 columns further on.
template <class T, bool A_ROWS, bool B_ROWS, int COUNT>
static void multiply_group_of(f32 (&c)[COUNT], GroupTile a, GroupTile b) {
    u32 thread = host::current % 128, warp = thread / WARP, lane = thread % WARP;
    for (u32 i = 0; i < COUNT; i++) {
        u32 row = warp * 16 + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        f32 sum = 0;
        for (u32 k = 0; k < 16; k++) sum += a.at<T>(A_ROWS, row, k) * b.at<T>(B_ROWS, column, k);
        c[i] += sum;
    }
}

static void sync_cluster() { host::leave(host::AT_CLUSTER); }
template <class T> static const T *in_cluster(const T *place, u32 rank) {
    return (const T *)(host::cluster_shared[rank] + ((const u8 *)place - host::dynamic_shared));
}
#define KERNEL_CLUSTER(name, threads, size, ...) HOST_KERNEL(name, false, size, __VA_ARGS__)
#define KERNEL_CLUSTERED(name, threads, ...) HOST_KERNEL(name, false, gz, __VA_ARGS__)
#define KERNEL_PAIRED(name, threads, ...) KERNEL(name, threads, __VA_ARGS__)

#endif

// ---- tiles in shared memory -----------------------------------------------------------------------------------------

// Place of 16-byte piece `piece` of row `row`, in elements: rows of PIECES pieces, exchanged so that a piece of eight
// neighbouring rows, and eight neighbouring pieces, lie in different banks.
template <int PIECES> DEVICE int piece_at(int row, int piece) {
    int turned = PIECES >= 8 ? piece ^ (row & 7) : PIECES == 4 ? piece ^ ((row >> 1) & 3) : piece ^ ((row >> 2) & 1);
    return (row * PIECES + turned) * 8;
}

// Copies eight 16-bit elements to a tile, VEC at a time. `source(i, ok)` gives the address of elements from i on.
template <int VEC, class T, class F> DEVICE void copy_piece(T *to, const T *valid, const F &source) {
    if (VEC == 1) {
        Vec<T, 8> piece;
        UNROLL for (int i = 0; i < 8; i++) {
            bool is_in;
            const T *from = source(i, is_in);
            piece.at[i].bits = 0;
            if (is_in) piece.at[i] = *from;
        }
        store_vec<8>(to, piece);
        return;
    }
    constexpr int STEP = VEC == 1 ? 8 : VEC;
    UNROLL for (int i = 0; i < 8; i += STEP) {
        bool is_in;
        const T *from = source(i, is_in);
        copy_async<STEP * 2>(to + i, is_in ? from : valid, is_in);
    }
}
