//! The GPU target and device: kernels are text, generated once in the subset that both vendors' compilers accept, compiled
//! without hardware, and launched through the driver.

pub mod element;
pub mod kernel;
pub mod lower;
pub mod nest;
mod ops;
pub mod site;
pub mod tactics;
pub mod team;
