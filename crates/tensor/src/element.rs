//! Rust types that are tensor elements as they stand in memory.

use bytemuck::Pod;
use half::{bf16, f16};

use crate::DType;

/// A Rust type whose values are the elements of one `DType`. Sealed; bool goes through `Tensor::from_bools`.
pub trait Element: Pod + Send + Sync + sealed::Sealed {
    /// The element type this is in memory.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident,)*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}

elements! {
    u8 => U8,
    u16 => U16,
    u32 => U32,
    u64 => U64,
    i8 => I8,
    i16 => I16,
    i32 => I32,
    i64 => I64,
    f16 => F16,
    bf16 => BF16,
    f32 => F32,
    f64 => F64,
}
