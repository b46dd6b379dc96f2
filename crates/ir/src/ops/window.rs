//! Ops that look at windows of an image, one file each: pooling, resizing, and sampling at given places.

mod cubic;
mod grid_sample;
mod pool;
mod resize;
mod roi_align;
#[cfg(test)]
mod sample_tests;
