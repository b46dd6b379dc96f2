//! Ops that read elements at computed places. An index out of range reads the nearest element within: the host cannot see
//! it, where the CPU reports an error.

use std::fmt::Write as _;

use precast_ir::op::{Gather, GatherElements, GatherNd};

use crate::element::{memory_type, word_type};
use crate::kernel::Lowered;
use crate::nest::{Kernel, Nest, Param, axis_indices, index_type, offset_sum, signed};
use crate::ops::elementwise::{split_by, vector_width};
use crate::site::Site;

/// Slices of x along an axis.
pub fn lower_gather(site: &Site, op: &Gather) -> Option<Lowered> {
    let (x_shape, shape) = (site.shape(0), site.out_shape(0));
    let (own, indices, out) = (signed(&site.strides(0)), signed(&site.strides(1)), signed(&site.out_strides(0)));
    let (extent, stride) = (x_shape[op.axis], own[op.axis]);
    if extent == 0 {
        return None;
    }
    let after = x_shape.len() - op.axis - 1;
    let from = [&own[..op.axis], &vec![0; indices.len()], &own[op.axis + 1..]].concat();
    let index_strides = [&vec![0; op.axis], &indices[..], &vec![0; after]].concat();
    let mut nest = Nest::new(&shape, &site.out_strides(0), &[from, out, index_strides]);
    let dtype = site.dtype(0);
    let mut width = vector_width(&nest, &[dtype]);
    let is_run = nest.axes.last().is_some_and(|axis| axis.strides == [1, 1, 0]);
    if !is_run || stride % width as i64 != 0 {
        width = 1;
    }
    split_by(&mut nest, width);
    let index = index_type(&[x_shape.iter().product(), shape.iter().product()]);
    let mut body = nest.indices("i", "at", index);
    let [from, to, place] = [0, 1, 2].map(|operand| nest.offset("i", operand, index));
    let _ = writeln!(body, "const {index} along = ({index})axis_index((i64)indices[{place}], {extent}ll);");
    let _ = writeln!(body, "const {index} from = {from} + along * ({index}){stride};");
    let _ = match width {
        1 => writeln!(body, "y[{to}] = x[from];"),
        _ => writeln!(body, "store_vec<{width}>(y + ({to}), load_vec<{width}>(x + from));"),
    };
    let launch = Kernel::new("gather", params(site)?).for_each(nest.count(), index, &body);
    Some(Lowered::one(format!("gather.{width}"), launch))
}

/// x, indices and y, moved as words.
fn params(site: &Site) -> Option<Vec<Param>> {
    let ty = word_type(site.dtype(0));
    Some(vec![
        Param::read(0, "x", ty).by_rows(),
        Param::read(1, "indices", memory_type(site.dtype(1))?).by_rows(),
        Param::write(0, "y", ty).by_rows(),
    ])
}

/// Elements of x at indices along an axis.
pub fn lower_gather_elements(site: &Site, op: &GatherElements) -> Option<Lowered> {
    let (x_shape, shape) = (site.shape(0), site.out_shape(0));
    let (own, indices) = (site.strides(0), site.strides(1));
    if x_shape.contains(&0) {
        return None;
    }
    let index = index_type(&[x_shape.iter().product(), shape.iter().product()]);
    let mut body = axis_indices(&shape, &site.out_strides(0), index);
    let place =
        offset_sum(indices.iter().enumerate().map(|(axis, &stride)| (format!("i{axis}"), stride as i64)), index);
    let _ = writeln!(body, "const {index} along = ({index})axis_index((i64)indices[{place}], {}ll);", x_shape[op.axis]);
    let name = |axis: usize| if axis == op.axis { "along".to_string() } else { format!("i{axis}") };
    let from = offset_sum(own.iter().enumerate().map(|(axis, &stride)| (name(axis), stride as i64)), index);
    let _ = writeln!(body, "y[at] = x[{from}];");
    let launch = Kernel::new("gather_elements", params(site)?).for_each(shape.iter().product(), index, &body);
    Some(Lowered::one("gather_elements", launch))
}

/// Slices of x at index tuples.
pub fn lower_gather_nd(site: &Site, op: &GatherNd) -> Option<Lowered> {
    let (x_shape, i_shape, shape) = (site.shape(0), site.shape(1), site.out_shape(0));
    let (own, indices) = (site.strides(0), site.strides(1));
    if x_shape.contains(&0) {
        return None;
    }
    let tuple_axes = i_shape.len() - 1;
    let tuple = i_shape[tuple_axes];
    let index = index_type(&[x_shape.iter().product(), shape.iter().product(), i_shape.iter().product()]);
    let mut body = axis_indices(&shape, &site.out_strides(0), index);
    let terms = (0..tuple_axes).map(|axis| (format!("i{axis}"), indices[axis] as i64));
    let _ = writeln!(body, "const {index} place = {};", offset_sum(terms, index));
    let mut terms: Vec<(String, i64)> = (0..op.batch_axes).map(|axis| (format!("i{axis}"), own[axis] as i64)).collect();
    for at in 0..tuple {
        let axis = op.batch_axes + at;
        let _ = writeln!(
            body,
            "const {index} t{at} = ({index})axis_index((i64)indices[place + {at} * ({index}){}], {}ll);",
            indices[tuple_axes], x_shape[axis]
        );
        terms.push((format!("t{at}"), own[axis] as i64));
    }
    let first = op.batch_axes + tuple;
    terms.extend((first..x_shape.len()).map(|axis| (format!("i{}", axis - first + tuple_axes), own[axis] as i64)));
    let _ = writeln!(body, "y[at] = x[{}];", offset_sum(terms, index));
    let launch = Kernel::new("gather_nd", params(site)?).for_each(shape.iter().product(), index, &body);
    Some(Lowered::one("gather_nd", launch))
}
