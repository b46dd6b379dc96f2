// Matrices of a stream on matrix instructions (`stream_mma.h`) that are levels of 4 bits, the first in the lowest bits, with a
// scale of the rows' type and perhaps a zero point for each BLOCK of them along K. A weight is (level - ORIGIN - zero point) *
// scale, rounded as it is where weights are made by themselves. Two levels become floats at once: those of a word that are 16
// bits apart, put behind the bits of a power of two whose last bit counts ones.

struct Matrix {
    const u8 *levels;
    const S *scales;
    const Z *zeros;
};

constexpr int PER_WORD = 8, BLOCKS = (K + BLOCK - 1) / BLOCK;
constexpr u32 LEVELS_MASK = 0x000f000fu;
constexpr u32 WHOLE_BITS = IsBf16<T>::VALUE ? 0x43004300u : 0x64006400u;
constexpr f32 WHOLE = IsBf16<T>::VALUE ? 128.0f : 1024.0f;
constexpr u32 ONES = IsBf16<T>::VALUE ? 0x3f803f80u : 0x3c003c00u, NEGATIVE_ZEROS = 0x80008000u;

// Elements of rows that are multiplied with levels 16 bits apart.
DEVICE Line in_order(const Line &x) {
    Line y;
    UNROLL for (int i = 0; i < 2; i++) {
        y.at[2 * i] = (x.at[i] & 0xffffu) | x.at[i + 2] << 16;
        y.at[2 * i + 1] = x.at[i] >> 16 | (x.at[i + 2] & 0xffff0000u);
    }
    return y;
}

struct Factors {
    // LEVELS_MASK, which the compiler cannot know: an instruction takes one constant and here are two, so that it would make one of
    // them again for almost every word.
    u32 mask;
    Vec<u32, LANE_K / PER_WORD> levels[AHEAD][MATRICES][COLUMN_TILES][2];
    // Pairs of the same number: the scale, and what stands for 0, taken off.
    u32 scales[AHEAD][MATRICES][COLUMN_TILES][2], zeros[AHEAD][MATRICES][COLUMN_TILES][2];

    DEVICE_MEMBER void begin(int rows) { mask = LEVELS_MASK + (u32)(rows >> 16); }

    DEVICE_MEMBER void load(const Matrix (&b)[MATRICES], int turn, int matrix, int tile, int half, int column, int k, bool is_in) {
        auto &own = levels[turn][matrix][tile][half];
        u32 &scale = scales[turn][matrix][tile][half], &zero = zeros[turn][matrix][tile][half];
        UNROLL for (int i = 0; i < LANE_K / PER_WORD; i++) own.at[i] = 0;
        scale = 0;
        f32 origin = -(WHOLE + ORIGIN);
        if (is_in) {
            own = load_vec<LANE_K / PER_WORD>((const u32 *)b[matrix].levels + ((i64)column * K + k) / PER_WORD);
            i64 block = (i64)column * BLOCKS + k / BLOCK;
            scale = b[matrix].scales[block].bits * 0x10001u;
            if (HAS_ZEROS) origin -= (f32)b[matrix].zeros[block];
        }
        zero = pair_of<T>(origin, origin);
    }

    DEVICE_MEMBER Line line(int turn, int matrix, int tile, int half, int at) const {
        u32 word = levels[turn][matrix][tile][half].at[at];
        Line x;
        UNROLL for (int i = 0; i < 4; i++) {
            u32 level = multiply_add_pairs<T>((word >> 4 * i & mask) | WHOLE_BITS, ONES, zeros[turn][matrix][tile][half]);
            x.at[i] = multiply_add_pairs<T>(level, scales[turn][matrix][tile][half], NEGATIVE_ZEROS);
        }
        return x;
    }
};
