// Windows of a convolution as rows of a matrix: row [n, d, h, w] is the window of that output element, k runs over
// [kd, kh, kw, c] (CHANNELS_FIRST: [c, kd, kh, kw]) of a group's channels.
template <class T, int ROWS> struct WindowRows {
    const T *image[ROWS];
    int d[ROWS], h[ROWS], w[ROWS];

    DEVICE_MEMBER void set(int i, const T *x, i64 row, i64 rows, i64) {
        bool is_row = row < rows;
        i64 n = is_row ? row / (OUT_D * OUT_H * OUT_W) : 0;
        int place = is_row ? (int)(row % (OUT_D * OUT_H * OUT_W)) : 0;
        image[i] = x + n * X_N;
        w[i] = place % OUT_W * STRIDE_W - PAD_W;
        h[i] = place / OUT_W % OUT_H * STRIDE_H - PAD_H;
        // A row beyond the last one has no element inside the image.
        d[i] = is_row ? place / (OUT_W * OUT_H) * STRIDE_D - PAD_D : -(1 << 28);
    }
    DEVICE_MEMBER const T *at(int i, int k, bool &is_in) const {
        int c = CHANNELS_FIRST ? k / (KERNEL_D * KERNEL_H * KERNEL_W) : k % GROUP_CHANNELS;
        int tap = CHANNELS_FIRST ? k % (KERNEL_D * KERNEL_H * KERNEL_W) : k / GROUP_CHANNELS;
        int x = w[i] + tap % KERNEL_W * DILATION_W;
        int y = h[i] + tap / KERNEL_W % KERNEL_H * DILATION_H;
        int z = d[i] + tap / (KERNEL_W * KERNEL_H) * DILATION_D;
        is_in = k < K && (u32)x < (u32)IN_W && (u32)y < (u32)IN_H && (u32)z < (u32)IN_D;
        return image[i] + (is_in ? z * X_D + y * X_H + x * X_W + c * X_C : 0);
    }
};
