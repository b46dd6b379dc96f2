//! What steps cost on the machine that a Graph is compiled for, in round numbers: the profit of a rewrite that trades
//! arithmetic for traffic depends on them. The target says them; passes do not know which target asks.

/// Rates of a machine. They order alternatives; nothing is promised by them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepCosts {
    /// Products a nanosecond of a dense convolution.
    pub dense_per_ns: u32,
    /// Products a nanosecond of a convolution of one channel each.
    pub depthwise_per_ns: u32,
    /// Bytes a nanosecond, of feature maps where they lie.
    pub bytes_per_ns: u32,
    /// Bytes of an element while the Graph runs, which a target may make narrower than the Graph's; none where they stay.
    pub element_bytes: Option<u32>,
    /// Besides its work, for each step.
    pub step_ns: u32,
    /// Whether a product takes constant weights of few bits as they are, with a scale for each block of them.
    pub multiplies_blocks: bool,
    /// Rows up to which a product with constant weights takes as long as these take to read; 0 where steps cost too little to
    /// be joined for it.
    pub streamed_rows: u32,
    /// The same for rows of 16-bit floats and weights of their type, or of 4 bits with scales of it.
    pub streamed_short_rows: u32,
    /// Whether a 1×1 convolution and the depthwise one that reads it are one step, which keeps a few channels at hand.
    pub joins_depthwise: bool,
}

impl StepCosts {
    /// A few cores whose feature maps lie in their caches. Counting bytes as main memory does would take pairs such as
    /// 32 → 16 → 96 channels, whose product has half as many multiplications again and is slower.
    pub const CORES: StepCosts = StepCosts {
        dense_per_ns: 100,
        depthwise_per_ns: 50,
        bytes_per_ns: 40,
        element_bytes: None,
        step_ns: 500,
        multiplies_blocks: true,
        streamed_rows: 0,
        streamed_short_rows: 0,
        joins_depthwise: true,
    };
}

impl Default for StepCosts {
    fn default() -> StepCosts {
        StepCosts::CORES
    }
}
