// Matrices of a stream (`stream.h`) that are levels of BITS bits, the first in the lowest bits, with a scale and perhaps a zero
// point for each BLOCK of them along K: a weight is (level ^ FLIP - ORIGIN - zero point) * scale.

struct Matrix {
    const u8 *levels;
    const S *scales;
    const Z *zeros;
};

constexpr int PER_WORD = 32 / BITS, BLOCKS = (K + BLOCK - 1) / BLOCK;
constexpr u32 LEVEL_MASK = (1u << BITS) - 1;
// A float of this size has no bits behind the point, and a level as its lowest ones.
constexpr u32 WHOLE_BITS = 0x4b000000u;
constexpr f32 WHOLE = 8388608.0f;

struct Factors {
    Vec<u32, LANE_K / PER_WORD> levels[AHEAD][MATRICES][COLUMNS];
    f32 scales[AHEAD][MATRICES][COLUMNS], zeros[AHEAD][MATRICES][COLUMNS];

    DEVICE_MEMBER void load(const Matrix (&b)[MATRICES], int turn, int matrix, int column, int from, int k) {
        const u32 *words = (const u32 *)b[matrix].levels + ((i64)from * K + k) / PER_WORD;
        levels[turn][matrix][column] = load_vec<LANE_K / PER_WORD>(words);
        i64 block = (i64)from * BLOCKS + k / BLOCK;
        scales[turn][matrix][column] = to_f32(b[matrix].scales[block]);
        zeros[turn][matrix][column] = WHOLE + ORIGIN + (HAS_ZEROS ? (f32)b[matrix].zeros[block] : 0.0f);
    }

    DEVICE_MEMBER f32 dot(int turn, int matrix, int column, const Row &x) const {
        f32 sum = 0, zero = zeros[turn][matrix][column];
        UNROLL for (int i = 0; i < LANE_K; i++) {
            u32 level = (levels[turn][matrix][column].at[i / PER_WORD] >> (i % PER_WORD * BITS) & LEVEL_MASK) ^ FLIP;
            sum += to_f32(x.element(i)) * (float_of(WHOLE_BITS | level) - zero);
        }
        return sum * scales[turn][matrix][column];
    }
};
