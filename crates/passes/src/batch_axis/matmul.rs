//! Matrix products: rows pass on batch axes and on the axes M and N, never on the contracted one.

use precast_ir::op::Matmul;
use precast_tensor::Dim;

use super::align::{beside, broadcast, check_broadcasts, two_axes, whole};
use super::state::{Answer, Refusal, Rows, State, View};

/// One side of a product.
struct Side<'a> {
    dims: &'a [Dim],
    state: &'a State,
    /// Which of the last two axes is contracted.
    contracted: usize,
}

pub(super) fn matmul(op: &Matmul, view: &View<'_>) -> Answer {
    let (a, b) = (view.dims(0), view.dims(1));
    let a_contracted = a.len() - if op.transpose_a { 2 } else { 1 };
    let b_contracted = b.len() - if op.transpose_b { 1 } else { 2 };
    let a = Side { dims: a, state: view.states[0], contracted: a_contracted };
    let b = Side { dims: b, state: view.states[1], contracted: b_contracted };
    product(view, &a, &b)
}

/// Zero points broadcast to their operands first; they are those of the whole operand, a row or a column.
pub(super) fn matmul_int(view: &View<'_>) -> Answer {
    let (a, b) = (view.dims(0), view.dims(1));
    let a_state = broadcast(view, &[(a, view.states[0]), (view.dims(2), view.states[2])])?;
    let b_state = broadcast(view, &[(b, view.states[1]), (view.dims(3), view.states[3])])?;
    let a = Side { dims: a, state: &a_state, contracted: a.len() - 1 };
    let b = Side { dims: b, state: &b_state, contracted: b.len() - 2 };
    product(view, &a, &b)
}

fn product(view: &View<'_>, a: &Side<'_>, b: &Side<'_>) -> Answer {
    let rank = a.dims.len().max(b.dims.len());
    let (a_rows, b_rows) = (a.output_rows(view, rank, rank - 2)?, b.output_rows(view, rank, rank - 1)?);
    match (a_rows, b_rows) {
        (None, None) => whole(view, [a.state, b.state]),
        (Some(rows), None) => one_sided(view, rows, rank, b),
        (None, Some(rows)) => one_sided(view, rows, rank, a),
        (Some(a), Some(b)) => match a.merge(&b) {
            Some(rows) => Ok(State::Row(rows)),
            None => Err(two_axes(view, b.axis)),
        },
    }
}

fn one_sided(view: &View<'_>, rows: Rows, rank: usize, other: &Side<'_>) -> Answer {
    if rows.axis < rank - 2 {
        let batch = &other.dims[..other.dims.len() - 2];
        check_broadcasts(view, batch, rank - 2, &rows)?;
    }
    beside(view, rows, [other.state]).map(State::Row)
}

impl Side<'_> {
    /// The rows of this side as they lie in a product of `rank` axes, where its own matrix axis becomes `matrix_axis`.
    fn output_rows(&self, view: &View<'_>, rank: usize, matrix_axis: usize) -> Result<Option<Rows>, Refusal> {
        let State::Row(rows) = self.state else { return Ok(None) };
        if rows.axis == self.contracted {
            return Err(view.over(rows.axis, "contracts"));
        }
        let batch_axes = self.dims.len() - 2;
        let axis = if rows.axis < batch_axes { rank - self.dims.len() + rows.axis } else { matrix_axis };
        Ok(Some(rows.at(axis)))
    }
}
