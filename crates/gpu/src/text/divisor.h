// Division of numbers below 2^31 by a parameter of the kernel: a multiplication and a shift, which the host has found
// (`Divisor` in ops/run_time_sizes.rs).
struct Divisor {
    u32 factor, shift;

    DEVICE_MEMBER u32 divide(u32 x) const { return (u32)(((u64)x * factor) >> shift); }
};

DEVICE Divisor divisor(i64 packed) { return {(u32)packed, (u32)(packed >> 32)}; }
