//! How much work one node is, before it is done: a few numbers in a file can ask for any amount of it, so whoever evaluates
//! nodes of constants looks here first.

use precast_tensor::Type;

use crate::Op;

/// Elements that a cubic interpolation reads of two axes.
const TAPS_MAX: u64 = 16;

/// A bound on the multiply-adds of an op on operands and results of these Types; more than any budget where a size is not
/// known.
pub fn multiply_adds(op: &Op, inputs: &[&Type], outputs: &[Type]) -> u64 {
    let elements = |position: usize| inputs.get(position).map_or(0, |ty| count(ty));
    let read = inputs.iter().map(|ty| count(ty)).fold(0, u64::saturating_add);
    let made = outputs.iter().map(count).fold(0, u64::saturating_add);
    let each = |work: u64| made.saturating_mul(work.max(1));
    match op {
        Op::Matmul(_) | Op::MatmulInt(_) => each(elements(1) / last(inputs, 1)),
        // An upper bound: a filter's elements belong to one output channel each.
        Op::Conv(_) | Op::ConvInt(_) | Op::ConvTranspose(_) => each(elements(1)),
        Op::Pool(op) => each(window(&op.window)),
        Op::PoolIndices(op) => each(window(&op.window)),
        Op::Lrn(op) => each(op.size as u64),
        // As many samples as a bin has; a region of any size where the op does not say.
        Op::RoiAlign(op) => match op.sampling_ratio as u64 {
            0 => each(elements(0)),
            samples => each(samples.saturating_mul(samples)),
        },
        // Each step of time multiplies with all weights.
        Op::Recurrent(_) => read.saturating_mul(inputs.first().and_then(|ty| size(ty, 0)).unwrap_or(u64::MAX)),
        // Antialiasing reads as many elements as one result stands for.
        Op::Resize(op) => {
            let reduced = op.scales.iter().map(|scale| (1.0 / scale).ceil() as u64);
            each(reduced.fold(TAPS_MAX, u64::saturating_mul))
        }
        // Every box against every box that was kept.
        Op::Nms(_) => elements(1).saturating_mul(inputs.get(1).and_then(|ty| size(ty, 2)).unwrap_or(u64::MAX)),
        // How many it finds is not known, but it looks at each element once.
        Op::NonZero(_) => read,
        // A bounded number of steps for each element that is read or made.
        _ => read.saturating_add(made),
    }
}

fn count(ty: &Type) -> u64 {
    ty.element_count().as_const().map_or(u64::MAX, |count| count.max(0) as u64)
}

fn size(ty: &Type, axis: usize) -> Option<u64> {
    ty.dims.get(axis)?.as_const().map(|size| size.max(0) as u64)
}

/// Columns of an operand, at least one.
fn last(inputs: &[&Type], position: usize) -> u64 {
    let columns = inputs.get(position).and_then(|ty| size(ty, ty.dims.len().checked_sub(1)?));
    columns.unwrap_or(1).max(1)
}

fn window(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1, |product: u64, &size| product.saturating_mul(size as u64))
}

#[cfg(test)]
mod tests {
    use precast_tensor::DType;

    use super::*;
    use crate::op::{Matmul, PoolFn, RoiAlign};

    fn float(sizes: &[usize]) -> Type {
        Type::new(DType::F32, sizes.iter().copied())
    }

    #[test]
    fn a_product_is_as_much_work_as_it_has_terms() {
        let op = Op::from(Matmul { transpose_a: false, transpose_b: false });
        assert_eq!(multiply_adds(&op, &[&float(&[2, 3]), &float(&[3, 5])], &[float(&[2, 5])]), 30);
    }

    #[test]
    fn samples_that_an_attribute_asks_for_count() {
        let op = |sampling_ratio| {
            let (output_height, output_width, spatial_scale, half_pixel) = (1, 1, 1.0, false);
            Op::from(RoiAlign {
                func: PoolFn::Avg,
                output_height,
                output_width,
                sampling_ratio,
                spatial_scale,
                half_pixel,
            })
        };
        let inputs = [float(&[1, 1, 4, 4]), float(&[1, 4]), Type::new(DType::I64, [1])];
        let inputs: Vec<&Type> = inputs.iter().collect();
        let made = [float(&[1, 1, 1, 1])];
        assert_eq!(multiply_adds(&op(65_536), &inputs, &made), 1 << 32);
        assert_eq!(multiply_adds(&op(0), &inputs, &made), 16);
    }
}
