//! Depthwise convolutions: each channel has filters of its own, so a thread computes some channels of one place.

use std::fmt::Write as _;

use precast_tensor::{DType, Tensor};

use crate::element::memory_type;
use crate::kernel::{CONV_DEPTHWISE, Launch, Lowered, Operand, PRODUCT_FINISH};
use crate::ops::conv::{ConvSizes, coordinates, epilogue};
use crate::ops::epilogue::Root;
use crate::ops::offsets::common_width;
use crate::ops::product::{PLACE, results_type};

/// Threads of a block.
const THREADS: u32 = 128;

/// The kernel of a depthwise convolution with what follows it.
pub(crate) fn lower(root: &Root, sizes: &ConvSizes) -> Option<Lowered> {
    let site = root.site;
    let inputs = [root.input(0), root.input(1)];
    let dtype = site.dtype(inputs[0]);
    if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
        return None;
    }
    let coordinates = coordinates(root);
    let epilogue = epilogue(root, &coordinates)?;
    let (channels, taps) = (sizes.out_channels, sizes.taps());
    let multiple = channels / sizes.channels;
    let filter = site.constant(inputs[1]).filter(|_| coordinates.is_by_columns());
    let is_last = sizes.is_channels_last() && filter.is_some() && multiple == 1;
    let most = 16 / dtype.size_bytes();
    let width = if is_last { common_width(most, &[channels]) } else { 1 };
    let mut packed = Vec::new();
    let filter_operand = match filter {
        Some(filter) => {
            packed.push(taps_first(filter, channels, taps)?);
            Operand::Packed(0)
        }
        None => Operand::Read(inputs[1] as u32),
    };
    let (filter_channel, filter_tap) = if filter.is_some() { (1, channels) } else { (taps, 1) };
    let rows = sizes.images * sizes.output.iter().product::<usize>();
    let name = memory_type(dtype)?;
    let mut text = format!("typedef {name} T;\ntypedef {} Y;\ntypedef f32 Acc;\n", memory_type(site.out_dtype(0))?);
    let along_rows = !coordinates.is_by_columns();
    let _ = writeln!(text, "constexpr int N = {channels}, SPLITS = 1, WIDTH = {width}, MULTIPLE = {multiple};");
    let _ = writeln!(text, "constexpr bool Z_IS_GROUP = true, ALONG_ROWS = {along_rows};");
    let _ = writeln!(text, "constexpr int FILTER_CHANNEL = {filter_channel}, FILTER_TAP = {filter_tap};");
    text.push_str("struct Sizes {};\n");
    let _ = writeln!(text, "{PLACE} {{ return {}; }}", coordinates.place());
    text.push_str(&epilogue.text);
    text.push_str(&results_type(2 + epilogue.operands.len()));
    text.push_str(PRODUCT_FINISH);
    text.push_str(&sizes.kernel_constants());
    text.push_str(&sizes.stride_constants());
    text.push_str(&sizes.size_constants());
    text.push_str(CONV_DEPTHWISE);
    let mut operands = vec![Operand::Read(inputs[0] as u32), filter_operand];
    operands.extend(epilogue.operands.iter().map(|(operand, _)| *operand));
    let [parameters, values] = epilogue.parameters(2);
    let last = operands.len();
    operands.push(Operand::Write(0));
    let _ = write!(
        text,
        "KERNEL_FLAT(depthwise, {THREADS}, Arg<const T, 0> x, Arg<const T, 1> filter, {parameters}Arg<Y, {last}> y, i64 \
         rows) {{\n    windows(x.get(), filter.get(), Finish{{y.rows(), {{{values}}}}}, rows);\n}}\n"
    );
    // The result, and no operand, may have fewer rows.
    let mut row_bytes = vec![0; last];
    row_bytes.push(site.out_dtype(0).size_bytes() as u64);
    let items = rows * channels / width;
    let launch = Launch {
        entry: "depthwise".to_string(),
        text,
        grid: [items.div_ceil(THREADS as usize) as u32, 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        operands,
        scalars: vec![rows as i64],
        row_bytes,
    };
    let name = format!("conv.depthwise.{width}{}", epilogue.suffix);
    (items > 0).then(|| Lowered { name, launches: vec![launch], scratch_bytes: Vec::new(), packed })
}

/// A filter [channels, taps] as [taps, channels].
fn taps_first(filter: &Tensor, channels: usize, taps: usize) -> Option<Tensor> {
    let (size, bytes) = (filter.dtype().size_bytes(), filter.as_bytes());
    let mut packed = vec![0; bytes.len()];
    for channel in 0..channels {
        for tap in 0..taps {
            let (from, to) = ((channel * taps + tap) * size, (tap * channels + channel) * size);
            packed[to..to + size].copy_from_slice(&bytes[from..from + size]);
        }
    }
    Tensor::new(filter.dtype(), [taps, channels], packed.into()).ok()
}
