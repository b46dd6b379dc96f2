// A product by multiply-add of single elements: BM x BN results a block, TM x TN a thread, BK of the inner axis at a time
// in two buffers of shared memory. SPLITS blocks divide the inner axis; their sums go to memory for a second launch.

constexpr int THREADS = (BM / TM) * (BN / TN);
constexpr int BUFFER = BK * (BM + BN + 8);
// Longer chains of additions lose accuracy with sums of equal terms.
constexpr int CHAIN = 256 / BK;

DEVICE f32 widen(f16 x) { return to_f32(x); }
DEVICE f32 widen(bf16 x) { return to_f32(x); }
template <class X> DEVICE X widen(X x) { return x; }

// The elements that one thread brings for a tile of ROWS x BK.
template <int ROWS, bool ALONG_K, template <int> class S> struct Bring {
    static constexpr int COUNT = ROWS * BK / THREADS, ROW_STEP = ALONG_K ? THREADS / BK : THREADS;
    static constexpr int ROW_COUNT = ALONG_K ? COUNT : ROWS > THREADS ? ROWS / THREADS : 1;
    static_assert(ROWS * BK % THREADS == 0 && THREADS % BK == 0, "threads bring equal shares");
    S<ROW_COUNT> source;
    Acc x[COUNT];

    DEVICE_MEMBER int row(int i) const {
        return ALONG_K ? threadIdx.x / BK + i * ROW_STEP : ROWS > THREADS ? threadIdx.x + i % ROW_COUNT * THREADS : threadIdx.x % ROWS;
    }
    DEVICE_MEMBER int k(int i) const {
        return ALONG_K ? threadIdx.x % BK : ROWS > THREADS ? i / ROW_COUNT : threadIdx.x / ROWS + i * (THREADS / ROWS);
    }
    template <class M> DEVICE_MEMBER void set(const M &matrix, i64 first, i64 rows, i64 pitch) {
        UNROLL for (int i = 0; i < ROW_COUNT; i++) source.set(i, matrix, first + row(i), rows, pitch);
    }
    DEVICE_MEMBER void load(int k_first) {
        UNROLL for (int i = 0; i < COUNT; i++) {
            bool is_in;
            const T *from = source.at(ALONG_K ? i : i % ROW_COUNT, k_first + k(i), is_in);
            x[i] = 0;
            if (is_in) x[i] = widen(*from);
        }
    }
    DEVICE_MEMBER void store(Acc *tile) const {
        UNROLL for (int i = 0; i < COUNT; i++) tile[k(i) * (ROWS + 4) + row(i)] = x[i];
    }
};

template <class A, class E> DEVICE void product_by_elements(A a, const T *b, const E &end, i64 rows) {
    SHARED_BYTES(bytes);
    Acc *shared = (Acc *)bytes;
    wait_for_last();
    u32 row_tiles = (u32)((rows + BM - 1) / BM);
    i64 z = blockIdx.x / row_tiles, row_first = (i64)(blockIdx.x % row_tiles) * BM;
    int split = blockIdx.z, column_first = blockIdx.y * BN;
    constexpr int STEPS = (K + BK - 1) / BK;
    int step = (int)((i64)STEPS * split / SPLITS), step_end = (int)((i64)STEPS * (split + 1) / SPLITS);
    Bring<BM, A_ALONG_K, SourceA> bring_a;
    Bring<BN, B_ALONG_K, SourceB> bring_b;
    bring_a.set(a + start_a(z, rows), row_first, rows, rows);
    bring_b.set(b + start_b(z), column_first, N, B_PITCH);
    // Neighbouring threads have neighbouring results.
    int thread_row = ALONG_ROWS ? threadIdx.x % (BM / TM) : threadIdx.x / (BN / TN);
    int thread_column = ALONG_ROWS ? threadIdx.x / (BM / TM) : threadIdx.x % (BN / TN);
    constexpr int LANES = TN < 4 ? TN : 4, ROW_LANES = TM < 4 ? TM : 4;
    Acc c[TM][TN], total[TM][TN];
    UNROLL for (int i = 0; i < TM; i++)
        UNROLL for (int j = 0; j < TN; j++) c[i][j] = total[i][j] = 0;
    bring_a.load(step * BK);
    bring_b.load(step * BK);
    bring_a.store(shared);
    bring_b.store(shared + BK * (BM + 4));
    sync_block();
    int chain = 0;
    for (int turn = 0; step < step_end; step++, turn ^= 1) {
        const Acc *tile_a = shared + turn * BUFFER, *tile_b = tile_a + BK * (BM + 4);
        if (step + 1 < step_end) {
            bring_a.load((step + 1) * BK);
            bring_b.load((step + 1) * BK);
        }
        UNROLL for (int k = 0; k < BK; k++) {
            Acc x[TM], y[TN];
            // A thread's rows and columns are pieces of 4, spread so that neighbours read neighbouring banks.
            UNROLL for (int i = 0; i < TM; i += ROW_LANES) {
                Vec<Acc, ROW_LANES> part = load_vec<ROW_LANES>(tile_a + k * (BM + 4) + thread_row * ROW_LANES + i * (BM / TM));
                UNROLL for (int e = 0; e < ROW_LANES; e++) x[i + e] = part.at[e];
            }
            UNROLL for (int j = 0; j < TN; j += LANES) {
                Vec<Acc, LANES> part = load_vec<LANES>(tile_b + k * (BN + 4) + thread_column * LANES + j * (BN / TN));
                UNROLL for (int e = 0; e < LANES; e++) y[j + e] = part.at[e];
            }
            UNROLL for (int i = 0; i < TM; i++)
                UNROLL for (int j = 0; j < TN; j++) c[i][j] += x[i] * y[j];
        }
        if (K > CHAIN * BK && ++chain == CHAIN) {
            chain = 0;
            UNROLL for (int i = 0; i < TM; i++)
                UNROLL for (int j = 0; j < TN; j++) total[i][j] += c[i][j], c[i][j] = 0;
        }
        if (step + 1 < step_end) {
            Acc *other = shared + (turn ^ 1) * BUFFER;
            bring_a.store(other);
            bring_b.store(other + BK * (BM + 4));
        }
        sync_block();
    }
    UNROLL for (int i = 0; i < TM; i++) {
        i64 row = row_first + thread_row * ROW_LANES + i % ROW_LANES + i / ROW_LANES * ROW_LANES * (BM / TM);
        UNROLL for (int j = 0; j < TN; j += WIDTH) {
            int column = column_first + thread_column * LANES + j % LANES + j / LANES * LANES * (BN / TN);
            Acc x[WIDTH];
            UNROLL for (int e = 0; e < WIDTH; e++) x[e] = K > CHAIN * BK ? total[i][j + e] + c[i][j + e] : c[i][j + e];
            if (row < rows && column < N) end.finish(x, row, rows, column, z);
        }
    }
}
