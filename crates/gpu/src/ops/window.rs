//! Windows that slide and samples between elements, one thread for each element of the result.

pub mod grid_sample;
pub mod pool;
pub mod resize;
pub mod roi_align;
