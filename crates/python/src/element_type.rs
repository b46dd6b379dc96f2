//! Element types as Python knows them: by the names of numpy, the numbers of ONNX and the codes of DLPack. One table.

use numpy::{PyArrayDescr, PyArrayDescrMethods};
use precast::DType;
use pyo3::prelude::*;

use crate::exceptions::usage;

/// What one element type is called elsewhere.
struct Row {
    dtype: DType,
    /// Name in numpy, or in the package `ml_dtypes` where numpy itself has no such type.
    numpy: &'static str,
    is_numpy_own: bool,
    /// Number in `TensorProto.DataType`.
    onnx: i32,
    /// Code of the kind of type in DLPack; none where DLPack packs elements more tightly than we do or has no such type.
    dlpack: Option<u8>,
}

const fn own(dtype: DType, numpy: &'static str, onnx: i32, dlpack: u8) -> Row {
    Row { dtype, numpy, is_numpy_own: true, onnx, dlpack: Some(dlpack) }
}

const fn extra(dtype: DType, numpy: &'static str, onnx: i32, dlpack: Option<u8>) -> Row {
    Row { dtype, numpy, is_numpy_own: false, onnx, dlpack }
}

const ROWS: &[Row] = &[
    own(DType::F32, "float32", 1, 2),
    own(DType::U8, "uint8", 2, 1),
    own(DType::I8, "int8", 3, 0),
    own(DType::U16, "uint16", 4, 1),
    own(DType::I16, "int16", 5, 0),
    own(DType::I32, "int32", 6, 0),
    own(DType::I64, "int64", 7, 0),
    own(DType::Bool, "bool", 9, 6),
    own(DType::F16, "float16", 10, 2),
    own(DType::F64, "float64", 11, 2),
    own(DType::U32, "uint32", 12, 1),
    own(DType::U64, "uint64", 13, 1),
    extra(DType::BF16, "bfloat16", 16, Some(4)),
    extra(DType::F8E4M3Fn, "float8_e4m3fn", 17, Some(10)),
    extra(DType::F8E4M3FnUz, "float8_e4m3fnuz", 18, Some(11)),
    extra(DType::F8E5M2, "float8_e5m2", 19, Some(12)),
    extra(DType::F8E5M2FnUz, "float8_e5m2fnuz", 20, Some(13)),
    extra(DType::F8E8M0, "float8_e8m0fnu", 24, Some(14)),
    extra(DType::U4, "uint4", 21, None),
    extra(DType::I4, "int4", 22, None),
    extra(DType::F4E2M1, "float4_e2m1fn", 23, None),
    extra(DType::U2, "uint2", 25, None),
    extra(DType::I2, "int2", 26, None),
];

fn row(dtype: DType) -> &'static Row {
    ROWS.iter().find(|row| row.dtype == dtype).expect("every element type has a row; a test asks for each")
}

/// The number of an element type in ONNX.
pub fn onnx_number(dtype: DType) -> i32 {
    row(dtype).onnx
}

/// The element type with a number of ONNX.
pub fn from_onnx_number(number: i32) -> Option<DType> {
    ROWS.iter().find(|row| row.onnx == number).map(|row| row.dtype)
}

/// DLPack's code and bits of an element type; none where DLPack lays its elements out in another way.
pub fn dlpack_type(dtype: DType) -> Option<(u8, u8)> {
    let bits = u8::try_from(dtype.size_bytes() * 8).ok()?;
    Some((row(dtype).dlpack?, bits))
}

/// The element type with DLPack's code and bits.
pub fn from_dlpack_type(code: u8, bits: u8) -> Option<DType> {
    ROWS.iter().map(|row| row.dtype).find(|&dtype| dlpack_type(dtype) == Some((code, bits)))
}

/// An element type as numpy has it.
pub struct NumpyType {
    /// The element type.
    pub dtype: DType,
    /// numpy's object for it.
    pub descr: Py<PyArrayDescr>,
    /// numpy's number for it, which arrays are compared by.
    pub number: i32,
}

impl NumpyType {
    /// What numpy calls this element type. Types that numpy does not have itself are those of `ml_dtypes`.
    pub fn of(py: Python<'_>, dtype: DType) -> PyResult<NumpyType> {
        let Row { numpy, is_numpy_own, .. } = row(dtype);
        let name = if *is_numpy_own {
            numpy.into_pyobject(py)?.into_any()
        } else {
            let module = py.import("ml_dtypes").map_err(|_| {
                usage(
                    py,
                    &format!(
                        "numpy has no {}; install the package ml_dtypes, or pass the values as an OrtValue",
                        dtype.name()
                    ),
                )
            })?;
            module.getattr(*numpy)?
        };
        let descr = PyArrayDescr::new(py, name)?;
        let number = descr.num();
        Ok(NumpyType { dtype, descr: descr.unbind(), number })
    }
}

/// The element type of a numpy dtype in the machine's byte order; none for types that models do not have.
pub fn from_descr(descr: &Bound<'_, PyArrayDescr>) -> PyResult<Option<DType>> {
    let name = descr.getattr("name")?.extract::<String>()?;
    Ok(from_numpy_name(&name))
}

/// The element type that numpy or `ml_dtypes` calls so.
pub fn from_numpy_name(name: &str) -> Option<DType> {
    ROWS.iter().find(|row| row.numpy == name).map(|row| row.dtype)
}

/// What numpy or `ml_dtypes` calls an element type.
pub fn numpy_name(dtype: DType) -> &'static str {
    row(dtype).numpy
}
