//! Convolutions: rows pass on the batch axis of x; filter and bias have none.

use precast_tensor::Dim;

use super::align::{all_whole, carried};
use super::state::{Answer, View, refusal};

/// Any convolution; `pads` are the amounts among its attributes.
pub(super) fn conv<'d>(view: &View<'_>, pads: impl IntoIterator<Item = &'d Dim>) -> Answer {
    view.check_sizes("padding", pads)?;
    match view.rows(0) {
        None => all_whole(view),
        Some(rows) if rows.axis == 0 => carried(view, 0, rows, 0),
        Some(rows) => Err(refusal(rows.axis, format!("convolves over {}", view.dim))),
    }
}
