//! Threads of a block that share rows: a row's elements go round the lanes of a team, a block holds several teams.

use std::fmt::Write as _;

use precast_tensor::DType;

use crate::nest::{Nest, memory_order};
use crate::ops::elementwise::vector_width;

/// Elements that a lane takes before a team grows.
const ELEMENTS_PER_LANE: usize = 4;
/// Lanes that read neighbours together even where a row is short.
const LANES_ALONG_MIN: usize = 32;
/// Lanes of a team whose columns lie together.
const LANES_APART_MAX: usize = 8;

/// How the threads of a block share rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Team {
    /// Threads of a block.
    pub threads: usize,
    /// Threads of a row: a power of 2.
    pub lanes: usize,
    /// Whether the lanes of a row are consecutive threads; else it is the rows that are.
    pub is_along: bool,
}

impl Team {
    /// A team for rows of `length` elements; `is_along` where neighbours of a row lie together in memory.
    pub fn new(length: usize, is_along: bool, threads: usize) -> Team {
        let wanted = length.div_ceil(ELEMENTS_PER_LANE).next_power_of_two();
        let lanes = if is_along {
            wanted.max(length.next_power_of_two().min(LANES_ALONG_MIN)).min(threads)
        } else {
            wanted.min(LANES_APART_MAX)
        };
        Team { threads, lanes, is_along }
    }

    /// Rows of a block.
    pub fn columns(&self) -> usize {
        self.threads / self.lanes
    }

    /// Lines that declare `lane` and `column` of a thread.
    pub fn places(&self) -> String {
        let (lanes, columns) = (self.lanes, self.columns());
        if self.is_along {
            format!("const u32 lane = threadIdx.x % {lanes}u, column = threadIdx.x / {lanes}u;\n")
        } else {
            format!("const u32 column = threadIdx.x % {columns}u, lane = threadIdx.x / {columns}u;\n")
        }
    }

    /// What the lanes of a row make of their values together; `shared` has room for a value of every thread.
    pub fn combine(&self, value: &str, functor: &str) -> String {
        let (lanes, columns) = (self.lanes, self.columns());
        if self.is_along {
            format!("combine_lanes<{lanes}>({value}, {functor}(), shared)")
        } else {
            format!("combine_columns<{columns}, {lanes}>({value}, {functor}(), shared)")
        }
    }

    /// Threads between neighbouring lanes of a row.
    pub fn lane_step(&self) -> usize {
        if self.is_along { 1 } else { self.columns() }
    }

    /// `body` for every row: it sees the row's number as `row`, which may be beyond the last one, and `is_row`.
    pub fn for_each_row(&self, index: &str, body: &str) -> String {
        let columns = self.columns();
        let mut text = self.places();
        let _ = write!(
            text,
            "for ({index} first = ({index})blockIdx.x * {columns}u; first < ({index})rows; first += ({index})gridDim.x * {columns}u) {{\n    const {index} row = first + column;\n    const bool is_row = row < ({index})rows;\n{}}}\n",
            crate::nest::indent(body)
        );
        text
    }
}

/// Rows of a tensor: the axes that tell rows apart, and the axes within a row.
pub struct Rows {
    /// Of the rows, in the order of the result, with the strides that were asked for.
    pub outer: Nest,
    /// Within a row, in the order of the operand.
    pub inner: Nest,
    /// Whether neighbours of a row lie together in memory.
    pub is_along: bool,
}

impl Rows {
    /// Rows over `axes` of an operand of this shape. `operands` are strides over all axes, the operand's first; rows are
    /// numbered in the order of the strides `order`.
    pub fn new(shape: &[usize], axes: &[usize], order: &[usize], operands: &[Vec<i64>]) -> Rows {
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let pick = |values: &[i64], axes: &[usize]| axes.iter().map(|&axis| values[axis]).collect::<Vec<i64>>();
        let nest = |axes: &[usize], order: &[usize]| {
            let extents: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
            let strides: Vec<Vec<i64>> = operands.iter().map(|strides| pick(strides, axes)).collect();
            let order: Vec<usize> = axes.iter().map(|&axis| order[axis]).collect();
            Nest::new(&extents, &order, &strides)
        };
        let own: Vec<usize> = operands[0].iter().map(|&stride| stride as usize).collect();
        let innermost = memory_order(&own).into_iter().rev().find(|&axis| shape[axis] > 1);
        let is_along = innermost.is_none_or(|axis| axes.contains(&axis));
        Rows { outer: nest(&kept, order), inner: nest(axes, &own), is_along }
    }

    /// Elements of a word of a row: `runs`, by position, have to be runs in it, and every row has to begin aligned.
    pub fn width(&self, dtype: DType, runs: &[usize]) -> usize {
        let Some(inner) = self.inner.axes.last() else { return 1 };
        if runs.iter().any(|&operand| inner.strides[operand] != 1) {
            return 1;
        }
        let mut width = vector_width(&self.inner, &[dtype]);
        let is_aligned = |width: usize| {
            let mut operands = (0..inner.strides.len()).filter(|&operand| inner.strides[operand] == 1);
            operands.all(|operand| self.outer.axes.iter().all(|axis| axis.strides[operand] % width as i64 == 0))
        };
        while width > 1 && !is_aligned(width) {
            width /= 2;
        }
        width
    }
}
