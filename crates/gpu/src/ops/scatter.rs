//! Ops that write elements at computed places: a copy of x, then the updates. Of several updates to one place the last one
//! stays, or all are combined in order, so results repeat. An index out of range writes the nearest element within.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use precast_ir::op::{ScatterElements, ScatterFn, ScatterNd};
use precast_tensor::DType;

use crate::element::{element, is_narrow, load, memory_type, value_type, word_type};
use crate::kernel::{Launch, Lowered};
use crate::nest::{Axis, Kernel, Nest, Param, index_type, offset_sum, signed};
use crate::ops::layout::copy_operand;
use crate::site::Site;

/// Updates of single elements along an axis. All that may meet lie on one line, which one thread runs along.
pub fn lower_scatter_elements(site: &Site, op: &ScatterElements) -> Option<Lowered> {
    let (shape, i_shape) = (site.shape(0), site.shape(1));
    let axis = op.axis;
    let (indices, updates, out) = (signed(&site.strides(1)), signed(&site.strides(2)), signed(&site.out_strides(0)));
    let mut launches = vec![copy_operand(site, 0)];
    if !i_shape.contains(&0) {
        let index = index_type(&[shape.iter().product(), i_shape.iter().product()]);
        let mut lines = i_shape.clone();
        lines[axis] = 1;
        let nest = Nest::new(&lines, &site.out_strides(0), &[out.clone(), indices.clone(), updates.clone()]);
        let mut body = nest.indices("i", "at", index);
        let [to, place, from] = [0, 1, 2].map(|operand| nest.offset("i", operand, index));
        let update = write_update(site.dtype(0), op.func, "from")?;
        let _ = write!(
            body,
            "for ({index} element = 0; element < {extent}u; element++) {{
    const {index} along = ({index})axis_index((i64)indices[{place} + element * ({index}){}], {}ll);
    const {index} from = {from} + element * ({index}){};
    const {index} to = {to} + along * ({index}){};
    {update}
}}
",
            indices[axis],
            shape[axis],
            updates[axis],
            out[axis],
            extent = i_shape[axis],
        );
        let params = params(site, op.func)?;
        launches.push(Kernel::new("scatter_elements", params).for_each(nest.count(), index, &body));
    }
    let name = format!("scatter_elements.{}", op.func.name());
    Some(Lowered { name, launches, scratch_bytes: Vec::new(), packed: Vec::new() })
}

/// Indices, updates and y.
fn params(site: &Site, func: ScatterFn) -> Option<Vec<Param>> {
    let ty = update_type(site.dtype(0), func)?;
    let indices = memory_type(site.dtype(1))?;
    Some(vec![Param::read(1, "indices", indices), Param::read(2, "updates", ty), Param::write(0, "y", ty)])
}

fn update_type(dtype: DType, func: ScatterFn) -> Option<&'static str> {
    if func == ScatterFn::Replace { Some(word_type(dtype)) } else { memory_type(dtype) }
}

/// The line that puts the update at `from` to y at `to`.
fn write_update(dtype: DType, func: ScatterFn, from: &str) -> Option<String> {
    if func == ScatterFn::Replace {
        return Some(format!("y[to] = updates[{from}];"));
    }
    let is_limit = matches!(func, ScatterFn::Min | ScatterFn::Max);
    if (is_narrow(dtype) && !is_limit) || value_type(dtype).is_none() {
        return None;
    }
    let kind = if dtype.is_float() { "float" } else { "int" };
    let (old, new) = if dtype.is_bool() {
        ("y[to]".to_string(), format!("updates[{from}]"))
    } else {
        (load(dtype, "y[to]"), load(dtype, &format!("updates[{from}]")))
    };
    let value = match (func, dtype.is_float()) {
        (ScatterFn::Replace, _) => new,
        (ScatterFn::Add, true) => format!("{old} + {new}"),
        (ScatterFn::Mul, true) => format!("{old} * {new}"),
        (ScatterFn::Add, false) => format!("add_int({old}, {new})"),
        (ScatterFn::Mul, false) => format!("mul_int({old}, {new})"),
        (ScatterFn::Min, _) => format!("min_{kind}({old}, {new})"),
        (ScatterFn::Max, _) => format!("max_{kind}({old}, {new})"),
    };
    Some(format!("y[to] = {};", element(dtype, &value)))
}

/// Updates of slices at index tuples.
pub fn lower_scatter_nd(site: &Site, op: &ScatterNd) -> Option<Lowered> {
    let tuples = Tuples::new(site);
    let mut launches = vec![copy_operand(site, 0)];
    let mut scratch_bytes = Vec::new();
    if tuples.count > 0 && tuples.run.count() > 0 {
        match op.func {
            ScatterFn::Replace if tuples.are_distinct(site) => launches.push(tuples.replace(site, false)?),
            ScatterFn::Replace => {
                scratch_bytes.push(4 * tuples.slices() as u64);
                launches.push(tuples.mark(site, "scatter_clear", "last[slice] = -1;")?);
                launches.push(tuples.mark(site, "scatter_mark", "atomic_max(last + slice, (i32)tuple);")?);
                launches.push(tuples.replace(site, true)?);
            }
            ScatterFn::Add | ScatterFn::Mul | ScatterFn::Min | ScatterFn::Max => {
                launches.push(tuples.combine(site, op.func)?);
            }
        }
    }
    let name = format!("scatter_nd.{}", op.func.name());
    Some(Lowered { name, launches, scratch_bytes, packed: Vec::new() })
}

/// The index tuples of a node, and the slices that they stand for.
struct Tuples {
    /// Extents of x that a tuple picks from, and the strides of y there.
    picked: Vec<(usize, usize)>,
    /// Tuples in row-major order, with strides of indices and updates.
    tuples: Nest,
    count: usize,
    /// Between the numbers of one tuple.
    number_stride: usize,
    /// A slice, with strides of y and updates.
    run: Nest,
    index: &'static str,
}

impl Tuples {
    fn new(site: &Site) -> Tuples {
        let (shape, i_shape) = (site.shape(0), site.shape(1));
        let (indices, updates, out) = (site.strides(1), site.strides(2), site.out_strides(0));
        let tuple_axes = i_shape.len() - 1;
        let length = i_shape[tuple_axes];
        let axis = |extent: usize, strides: [usize; 2]| Axis { extent, strides: signed(&strides) };
        let mut tuples: Vec<Axis> = (0..tuple_axes).map(|at| axis(i_shape[at], [indices[at], updates[at]])).collect();
        if tuples.is_empty() {
            tuples.push(axis(1, [0, 0]));
        }
        let run_shape = &shape[length..];
        let run_strides = [signed(&out[length..]), signed(&updates[tuple_axes..])];
        let counts = [shape.iter().product(), i_shape.iter().product(), site.shape(2).iter().product()];
        Tuples {
            picked: shape.iter().copied().zip(out.iter().copied()).take(length).collect(),
            count: i_shape[..tuple_axes].iter().product(),
            tuples: Nest { axes: tuples },
            number_stride: indices[tuple_axes],
            run: Nest::new(run_shape, &out[length..], &run_strides),
            index: index_type(&counts),
        }
    }

    /// Slices of x.
    fn slices(&self) -> usize {
        self.picked.iter().map(|(extent, _)| extent).product()
    }

    /// Whether the tuples are known and no two are equal.
    fn are_distinct(&self, site: &Site) -> bool {
        let Some(values) = site.constant(1).and_then(|tensor| tensor.to_i128_vec().ok()) else {
            return self.count == 1;
        };
        let place = |tuple: &[i128]| -> Vec<i128> {
            let pairs = tuple.iter().zip(&self.picked);
            pairs.map(|(&at, (extent, _))| if at < 0 { at + *extent as i128 } else { at }).collect()
        };
        let mut seen = BTreeSet::new();
        self.count == 1 || values.chunks(self.picked.len().max(1)).all(|tuple| seen.insert(place(tuple)))
    }

    /// Lines that declare, from `tuple`, the slice's number `slice`, its first element `first` in y, and its first update.
    fn places(&self) -> String {
        let index = self.index;
        let mut text = self.tuples.indices("t", "tuple", index);
        let _ = writeln!(text, "const {index} place = {};", self.tuples.offset("t", 0, index));
        let _ = writeln!(text, "const {index} update = {};", self.tuples.offset("t", 1, index));
        let mut slice_stride = self.slices();
        let (mut slice, mut first) = (Vec::new(), Vec::new());
        for (at, (extent, stride)) in self.picked.iter().enumerate() {
            slice_stride /= (*extent).max(1);
            let _ = writeln!(
                text,
                "const {index} n{at} = ({index})axis_index((i64)indices[place + {at} * ({index}){}], {extent}ll);",
                self.number_stride
            );
            slice.push((format!("n{at}"), slice_stride as i64));
            first.push((format!("n{at}"), *stride as i64));
        }
        let _ = writeln!(text, "const {index} slice = {};", offset_sum(slice, index));
        let _ = writeln!(text, "const {index} first = {};", offset_sum(first, index));
        text
    }

    /// A thread for each tuple does something with `last`, the last tuple of each slice.
    fn mark(&self, site: &Site, entry: &str, action: &str) -> Option<Launch> {
        let index = self.index;
        let body = format!("const {index} tuple = at;\n{}{action}\n", self.places());
        let params = vec![Param::read(1, "indices", memory_type(site.dtype(1))?), Param::scratch(0, "last", "i32")];
        Some(Kernel::new(entry, params).for_each(self.count, index, &body))
    }

    /// A thread for each element of each update; with `is_marked` only those of the last update of a slice write.
    fn replace(&self, site: &Site, is_marked: bool) -> Option<Launch> {
        let index = self.index;
        let run = self.run.count();
        let mut body = format!("const {index} tuple = at / {run}u, element = at % {run}u;\n{}", self.places());
        if is_marked {
            let _ = writeln!(body, "if (last[slice] != (i32)tuple) continue;");
        }
        body.push_str(&self.run.indices("i", "element", index));
        let [to, from] = [0, 1].map(|operand| self.run.offset("i", operand, index));
        let _ = writeln!(body, "y[first + {to}] = updates[update + {from}];");
        let mut params = params(site, ScatterFn::Replace)?;
        if is_marked {
            params.push(Param::scratch(0, "last", "i32"));
        }
        Some(Kernel::new("scatter_nd", params).for_each(self.count * run, index, &body))
    }

    /// A thread for each element of a slice combines all updates in order: any two of them may meet.
    fn combine(&self, site: &Site, func: ScatterFn) -> Option<Launch> {
        let index = self.index;
        let mut body = self.run.indices("i", "at", index);
        let [to, from] = [0, 1].map(|operand| self.run.offset("i", operand, index));
        let update = write_update(site.dtype(0), func, "from")?;
        let inner = format!("{}const {index} to = first + {to}, from = update + {from};\n{update}\n", self.places());
        let _ = write!(
            body,
            "for ({index} tuple = 0; tuple < {}u; tuple++) {{\n{}}}\n",
            self.count,
            crate::nest::indent(&inner)
        );
        Some(Kernel::new("scatter_nd", params(site, func)?).for_each(self.run.count(), index, &body))
    }
}
