//! What tests share: the tolerance that decides whether a result equals its reference. Development only.
#![forbid(unsafe_code)]

pub mod tolerance;
