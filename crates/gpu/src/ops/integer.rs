//! 8-bit products and convolutions to i32: one thread for each element of the result.

use std::fmt::Write as _;

use precast_ir::op::ConvInt;

use crate::element::memory_type;
use crate::kernel::Lowered;
use crate::nest::{Kernel, Param, axis_indices, broadcast_strides, indent, index_type, offset_sum};
use crate::ops::layout::number;
use crate::site::Site;

/// Matrix product of centred operands.
pub fn lower_matmul_int(site: &Site) -> Option<Lowered> {
    let shape = site.out_shape(0);
    let (a_shape, b_shape) = (site.shape(0), site.shape(1));
    let rank = shape.len();
    let depth = a_shape[a_shape.len() - 1];
    let index = index_type(&[shape.iter().product(), a_shape.iter().product(), b_shape.iter().product()]);
    let mut body = axis_indices(&shape, &site.out_strides(0), index);
    // Operands over the axes of the result with `k` in place of the column of a and the row of b.
    let place = |input: usize, of: usize| {
        let own_shape = site.shape(of);
        let strides = broadcast_strides(&site.shape(input), &site.strides(input), &own_shape);
        let missing = rank - own_shape.len();
        let terms = (0..own_shape.len()).map(|axis| {
            let is_depth = axis + 1 + of == own_shape.len();
            // Batch axes of extent 1 are broadcast.
            let stride = if own_shape[axis] == 1 { 0 } else { strides[axis] };
            (if is_depth { "k".to_string() } else { format!("i{}", axis + missing) }, stride)
        });
        offset_sum(terms, index)
    };
    let _ = write!(
        body,
        "u32 total = 0;
for ({index} k = 0; k < {depth}u; k++) {{
    const i32 left = (i32)a[{}] - (i32)a_zero[{}], right = (i32)b[{}] - (i32)b_zero[{}];
    total += (u32)(left * right);
}}
y[at] = (i32)total;
",
        place(0, 0),
        place(2, 0),
        place(1, 1),
        place(3, 1),
    );
    let params = vec![
        Param::read(0, "a", memory_type(site.dtype(0))?),
        Param::read(1, "b", memory_type(site.dtype(1))?),
        Param::read(2, "a_zero", memory_type(site.dtype(2))?),
        Param::read(3, "b_zero", memory_type(site.dtype(3))?),
        Param::write(0, "y", "i32"),
    ];
    Some(Lowered::one("matmul_int", Kernel::new("matmul_int", params).for_each(shape.iter().product(), index, &body)))
}

/// Convolution of centred operands. Padding has the value of the zero point, so it adds nothing.
pub fn lower_conv_int(site: &Site, op: &ConvInt) -> Option<Lowered> {
    let (shape, x_shape, w_shape) = (site.out_shape(0), site.shape(0), site.shape(1));
    let (own, filter) = (site.strides(0), site.strides(1));
    let axes = shape.len() - 2;
    let index = index_type(&[shape.iter().product(), x_shape.iter().product(), w_shape.iter().product()]);
    let group_channels = w_shape[1];
    let mut body = axis_indices(&shape, &site.out_strides(0), index);
    let has_zero_of_channel = site.shape(3).iter().product::<usize>() > 1;
    let _ = writeln!(
        body,
        "const i32 x_zero_of = (i32)x_zero[0], w_zero_of = (i32)w_zero[{}];",
        if has_zero_of_channel { format!("i1 * ({index}){}", site.strides(3)[0]) } else { "0".to_string() }
    );
    let _ = writeln!(
        body,
        "const {index} first_channel = i1 / {}u * {group_channels}u;\nu32 total = 0;",
        (shape[1] / op.groups).max(1)
    );
    let mut from = vec![("i0".to_string(), own[0] as i64), ("(first_channel + c)".to_string(), own[1] as i64)];
    let mut weight = vec![("i1".to_string(), filter[0] as i64), ("c".to_string(), filter[1] as i64)];
    for axis in 0..axes {
        from.push((format!("({index})p{axis}"), own[axis + 2] as i64));
        weight.push((format!("({index})w{axis}"), filter[axis + 2] as i64));
    }
    let mut text = format!(
        "for ({index} c = 0; c < {group_channels}u; c++)\n    total += (u32)(((i32)x[{}] - x_zero_of) * ((i32)w[{}] - w_zero_of));\n",
        offset_sum(from, index),
        offset_sum(weight, index)
    );
    for axis in (0..axes).rev() {
        text = format!(
            "for (i64 w{axis} = 0; w{axis} < {}; w{axis}++) {{\n    const i64 p{axis} = (i64)i{} * {} + w{axis} * {} - ({});\n    if (p{axis} < 0 || p{axis} >= {}) continue;\n{}}}\n",
            w_shape[axis + 2],
            axis + 2,
            op.stride[axis],
            op.dilation[axis],
            number(&op.pad_lo[axis])?,
            x_shape[axis + 2],
            indent(&text)
        );
    }
    let _ = writeln!(body, "{text}y[at] = (i32)total;");
    let params = vec![
        Param::read(0, "x", memory_type(site.dtype(0))?),
        Param::read(1, "w", memory_type(site.dtype(1))?),
        Param::read(2, "x_zero", memory_type(site.dtype(2))?),
        Param::read(3, "w_zero", memory_type(site.dtype(3))?),
        Param::write(0, "y", "i32"),
    ];
    Some(Lowered::one("conv_int", Kernel::new("conv_int", params).for_each(shape.iter().product(), index, &body)))
}
