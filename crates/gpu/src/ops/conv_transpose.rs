//! Transposed convolutions: one thread gathers what reaches one result.

use std::fmt::Write as _;

use precast_ir::op::ConvTranspose;
use precast_tensor::{DType, Dim};

use crate::element::memory_type;
use crate::kernel::{CONV_TRANSPOSE, Launch, Lowered, Operand, PRODUCT_FINISH};
use crate::ops::conv::{ConvSizes, coordinates, epilogue, five, space};
use crate::ops::epilogue::Root;
use crate::ops::product::{PLACE, results_type};

/// Threads of a block.
const THREADS: u32 = 128;

/// The kernel of a transposed convolution with what follows it.
pub(crate) fn lower(root: &Root, op: &ConvTranspose) -> Option<Lowered> {
    let site = root.site;
    let inputs = [root.input(0), root.input(1)];
    let dtype = site.dtype(inputs[0]);
    if !matches!(dtype, DType::F16 | DType::BF16 | DType::F32) {
        return None;
    }
    let (x, filter, out) = (site.shape(inputs[0]), site.shape(inputs[1]), root.out_shape());
    let pads: Option<Vec<usize>> = op.pad_lo.iter().map(Dim::as_usize).collect();
    let sizes = ConvSizes {
        images: x[0],
        channels: x[1],
        out_channels: out[1],
        groups: op.groups,
        input: space(&x[2..], 1)?,
        output: space(&out[2..], 1)?,
        kernel: space(&filter[2..], 1)?,
        stride: space(&op.stride, 1)?,
        pad: space(&pads?, 0)?,
        dilation: space(&op.dilation, 1)?,
        x_strides: five(&site.strides(inputs[0]))?,
    };
    let coordinates = coordinates(root);
    let epilogue = epilogue(root, &coordinates)?;
    let channels = sizes.out_channels;
    let rows = sizes.images * sizes.output.iter().product::<usize>();
    let along_rows = !coordinates.is_by_columns();
    let (name, out_name) = (memory_type(dtype)?, memory_type(site.out_dtype(0))?);
    let mut text = format!("typedef {name} T;\ntypedef {out_name} Y;\ntypedef f32 Acc;\n");
    let group_out = channels / sizes.groups;
    let _ = writeln!(text, "constexpr int N = {channels}, SPLITS = 1, WIDTH = 1, GROUP_OUT = {group_out};");
    let strides = five(&site.strides(inputs[1]))?;
    let [c, o, taps] = [strides[0], strides[1], if strides[1] == 1 && filter[1] > 1 { filter[1] } else { 1 }];
    let _ = writeln!(text, "constexpr i64 FILTER_C = {c}, FILTER_O = {o}, FILTER_TAP = {taps};");
    let _ = writeln!(text, "constexpr bool Z_IS_GROUP = true, ALONG_ROWS = {along_rows};");
    text.push_str("struct Sizes {};\n");
    let _ = writeln!(text, "{PLACE} {{ return {}; }}", coordinates.place());
    text.push_str(&epilogue.text);
    text.push_str(&results_type(2 + epilogue.operands.len()));
    text.push_str(PRODUCT_FINISH);
    text.push_str(&sizes.kernel_constants());
    text.push_str(&sizes.stride_constants());
    text.push_str(&sizes.size_constants());
    text.push_str(CONV_TRANSPOSE);
    let mut operands = vec![Operand::Read(inputs[0] as u32), Operand::Read(inputs[1] as u32)];
    operands.extend(epilogue.operands.iter().map(|(operand, _)| *operand));
    let [parameters, values] = epilogue.parameters(2);
    let last = operands.len();
    operands.push(Operand::Write(0));
    let _ = write!(
        text,
        "KERNEL_FLAT(transposed, {THREADS}, Arg<const T, 0> x, Arg<const T, 1> filter, {parameters}Arg<Y, {last}> y, i64 \
         rows) {{\n    gather(x.get(), filter.get(), Finish{{y.rows(), {{{values}}}}}, rows);\n}}\n"
    );
    // The result, and no operand, may have fewer rows.
    let mut row_bytes = vec![0; last];
    row_bytes.push(site.out_dtype(0).size_bytes() as u64);
    let items = rows * channels;
    let launch = Launch {
        entry: "transposed".to_string(),
        text,
        grid: [items.div_ceil(THREADS as usize) as u32, 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        operands,
        scalars: vec![rows as i64],
        row_bytes,
    };
    (items > 0).then(|| Lowered::one(format!("conv.transposed{}", epilogue.suffix), launch))
}
