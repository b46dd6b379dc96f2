// A depthwise convolution: one thread computes WIDTH channels of one place.
template <class E> DEVICE void windows(const T *x, const T *filter, const E &end, i64 rows) {
    constexpr int PLACES = OUT_D * OUT_H * OUT_W;
    wait_for_last();
    i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= rows * (N / WIDTH)) return;
    // Neighbouring threads have neighbouring results.
    int column = ALONG_ROWS ? (int)(item / PLACES % N) : (int)(item % (N / WIDTH)) * WIDTH;
    i64 row = ALONG_ROWS ? item / ((i64)PLACES * N) * PLACES + item % PLACES : item / (N / WIDTH);
    int place = (int)(row % PLACES);
    int w = place % OUT_W * STRIDE_W - PAD_W;
    int h = place / OUT_W % OUT_H * STRIDE_H - PAD_H;
    int d = place / (OUT_W * OUT_H) * STRIDE_D - PAD_D;
    x += row / PLACES * X_N + (i64)(column / MULTIPLE) * X_C;
    filter += (i64)column * FILTER_CHANNEL;
    f32 sums[WIDTH];
    UNROLL for (int i = 0; i < WIDTH; i++) sums[i] = 0;
    UNROLL for (int tap = 0; tap < KERNEL_D * KERNEL_H * KERNEL_W; tap++) {
        int tap_w = w + tap % KERNEL_W * DILATION_W;
        int tap_h = h + tap / KERNEL_W % KERNEL_H * DILATION_H;
        int tap_d = d + tap / (KERNEL_W * KERNEL_H) * DILATION_D;
        bool is_in = (u32)tap_w < (u32)IN_W && (u32)tap_h < (u32)IN_H && (u32)tap_d < (u32)IN_D;
        if (!is_in) continue;
        Vec<T, WIDTH> values = load_vec<WIDTH>(x + tap_d * X_D + tap_h * X_H + tap_w * X_W);
        Vec<T, WIDTH> factors = load_vec<WIDTH>(filter + tap * FILTER_TAP);
        UNROLL for (int i = 0; i < WIDTH; i++) sums[i] += to_f32(values.at[i]) * to_f32(factors.at[i]);
    }
    end.finish(sums, row, rows, column, 0);
}
