//! NumPy's .npy files, by which tensors go to onnxruntime and come back.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use precast::{DType, Tensor};

const MAGIC: &[u8] = b"\x93NUMPY\x01\x00";

/// The header is padded so that the data begins at a multiple of this.
const DATA_ALIGN_BYTES: usize = 64;

/// NumPy's names of the element types that both sides have.
const DESCRIPTIONS: &[(DType, &str)] = &[
    (DType::Bool, "|b1"),
    (DType::U8, "|u1"),
    (DType::I8, "|i1"),
    (DType::U16, "<u2"),
    (DType::I16, "<i2"),
    (DType::U32, "<u4"),
    (DType::I32, "<i4"),
    (DType::U64, "<u8"),
    (DType::I64, "<i8"),
    (DType::F16, "<f2"),
    (DType::F32, "<f4"),
    (DType::F64, "<f8"),
];

/// Writes a tensor.
pub fn write(path: &Path, tensor: &Tensor) -> Result<()> {
    let described = DESCRIPTIONS.iter().find(|(dtype, _)| *dtype == tensor.dtype());
    let (_, description) = described.with_context(|| format!("NumPy has no {}", tensor.dtype().name()))?;
    let sizes: String = tensor.shape().iter().map(|size| format!("{size},")).collect();
    let mut header = format!("{{'descr': '{description}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let unpadded = MAGIC.len() + size_of::<u16>() + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(DATA_ALIGN_BYTES) - unpadded));
    header.push('\n');
    let mut file = fs::File::create(path).with_context(|| format!("cannot write '{}'", path.display()))?;
    file.write_all(MAGIC)?;
    file.write_all(&(header.len() as u16).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    file.write_all(tensor.as_bytes())?;
    Ok(())
}

/// Reads a tensor.
pub fn read(path: &Path) -> Result<Tensor> {
    let bytes = fs::read(path).with_context(|| format!("cannot read '{}'", path.display()))?;
    decode(bytes.into()).with_context(|| format!("'{}'", path.display()))
}

fn decode(bytes: Bytes) -> Result<Tensor> {
    let start = MAGIC.len() + size_of::<u16>();
    ensure!(bytes.starts_with(MAGIC) && bytes.len() >= start, "not a .npy file of version 1");
    let header_bytes = usize::from(u16::from_le_bytes([bytes[MAGIC.len()], bytes[MAGIC.len() + 1]]));
    ensure!(bytes.len() >= start + header_bytes, "the header is cut off");
    let header = std::str::from_utf8(&bytes[start..start + header_bytes])?;
    ensure!(header.contains("'fortran_order': False"), "the array is in Fortran order");
    let description = between(header, "'descr': '", "'")?;
    let Some((dtype, _)) = DESCRIPTIONS.iter().find(|(_, name)| *name == description) else {
        bail!("the element type {description} is not known");
    };
    let sizes = between(header, "'shape': (", ")")?.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape = sizes.map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    Ok(Tensor::new(*dtype, shape, bytes.slice(start + header_bytes..))?)
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Result<&'a str> {
    let start = text.find(before).with_context(|| format!("the header lacks {before}"))? + before.len();
    let length = text[start..].find(after).with_context(|| format!("the header lacks {after}"))?;
    Ok(&text[start..start + length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_come_back_as_they_went() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let tensors = [
            Tensor::scalar(2.5_f64),
            Tensor::from_vec([3], vec![1_i64, -2, 3]).unwrap(),
            Tensor::from_vec([2, 0, 4], Vec::<f32>::new()).unwrap(),
            Tensor::from_bools([1, 2], &[true, false]).unwrap(),
        ];
        for tensor in tensors {
            write(&path, &tensor).unwrap();
            let back = read(&path).unwrap();
            assert_eq!((back.type_(), back.as_bytes()), (tensor.type_(), tensor.as_bytes()));
        }
    }
}
