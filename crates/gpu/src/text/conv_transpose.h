// A transposed convolution: one thread gathers what reaches one result.

// The input coordinate from which tap `tap` reaches `place`, or -1.
template <int STRIDE, int IN> DEVICE int reached_from(int place, int tap) {
    int from = place - tap;
    return from >= 0 && from % STRIDE == 0 && from / STRIDE < IN ? from / STRIDE : -1;
}

template <class E> DEVICE void gather(const T *x, const T *filter, const E &end, i64 rows) {
    constexpr int PLACES = OUT_D * OUT_H * OUT_W, TAPS = KERNEL_D * KERNEL_H * KERNEL_W;
    wait_for_last();
    i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= rows * N) return;
    int column = ALONG_ROWS ? (int)(item / PLACES % N) : (int)(item % N);
    i64 row = ALONG_ROWS ? item / ((i64)PLACES * N) * PLACES + item % PLACES : item / N;
    int place = (int)(row % PLACES), group = column / GROUP_OUT;
    x += row / PLACES * X_N + (i64)group * GROUP_CHANNELS * X_C;
    filter += group * GROUP_CHANNELS * FILTER_C + column % GROUP_OUT * FILTER_O;
    f32 sum[1] = {0};
    for (int tap = 0; tap < TAPS; tap++) {
        int w = reached_from<STRIDE_W, IN_W>(place % OUT_W + PAD_W, tap % KERNEL_W * DILATION_W);
        int h = reached_from<STRIDE_H, IN_H>(place / OUT_W % OUT_H + PAD_H, tap / KERNEL_W % KERNEL_H * DILATION_H);
        int d = reached_from<STRIDE_D, IN_D>(place / (OUT_W * OUT_H) + PAD_D, tap / (KERNEL_W * KERNEL_H) * DILATION_D);
        if (w < 0 || h < 0 || d < 0) continue;
        const T *from = x + d * X_D + h * X_H + w * X_W;
        f32 part = 0;
        for (int c = 0; c < GROUP_CHANNELS; c++)
            part += to_f32(from[(i64)c * X_C]) * to_f32(filter[c * FILTER_C + tap * FILTER_TAP]);
        sum[0] += part;
    }
    end.finish(sum, row, rows, column, 0);
}
