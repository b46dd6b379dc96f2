//! Arrays as NumPy writes them: `.npy` files of format 1 to 3, and `.npz` archives of them. Little-endian only; Fortran
//! order is turned into C order. Nothing a file says is believed: sizes are checked before memory is taken.

use std::io::{Cursor, Read, Seek, Write};

use bytes::Bytes;
use precast_tensor::{DType, Tensor, TensorError};
use thiserror::Error;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::npy_header::{self, Header};

/// Arrays of one archive may have this many bytes together once unpacked.
pub const NPZ_BYTES_MAX: u64 = 16 << 30;

/// Why bytes are not an array, or an array could not be written.
#[derive(Debug, Error)]
pub enum NpyError {
    /// The header is not one of a NumPy array.
    #[error("not a NumPy array: {0}")]
    Header(String),
    /// The element type has no counterpart.
    #[error("the NumPy type '{0}' is not supported")]
    ElementType(String),
    /// The data is shorter or longer than the shape says.
    #[error("the array has {found} bytes of data; {expected} are expected")]
    Length {
        /// Bytes there are.
        found: u64,
        /// Bytes the shape asks for.
        expected: u64,
    },
    /// The elements are not of their type.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The archive is damaged.
    #[error("not a NumPy archive: {0}")]
    Archive(#[from] zip::result::ZipError),
    /// An array of an archive is wrong.
    #[error("array '{name}': {source}")]
    Entry {
        /// The array.
        name: String,
        /// What is wrong with it.
        source: Box<NpyError>,
    },
    /// The archive unpacks to more than is allowed.
    #[error("the archive unpacks to {bytes} bytes; the limit is {NPZ_BYTES_MAX}")]
    TooLarge {
        /// What it unpacks to.
        bytes: u64,
    },
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// The array in the bytes of a `.npy` file. Types that NumPy lacks are stored as raw bytes or as the next wider integer;
/// `expected` says what they are.
pub fn read_npy(bytes: &Bytes, expected: Option<DType>) -> Result<Tensor, NpyError> {
    let header = npy_header::parse(bytes)?;
    tensor_of(&header, bytes.slice(header.data_at..), expected)
}

/// The arrays of a `.npz` archive in its order. `expected` gives the element type of an array by name, if it is known.
pub fn read_npz(bytes: &Bytes, expected: impl Fn(&str) -> Option<DType>) -> Result<Vec<(String, Tensor)>, NpyError> {
    let mut archive = ZipArchive::new(Cursor::new(bytes.clone()))?;
    let mut total: u64 = 0;
    let mut arrays = Vec::new();
    for position in 0..archive.len() {
        let mut entry = archive.by_index(position)?;
        let Some(name) = entry.name()?.strip_suffix(".npy").map(str::to_string) else { continue };
        total = total.saturating_add(entry.size());
        if total > NPZ_BYTES_MAX {
            return Err(NpyError::TooLarge { bytes: total });
        }
        let size = entry.size();
        let array = read_entry(&mut entry, size, expected(&name));
        let tensor = array.map_err(|source| NpyError::Entry { name: name.clone(), source: Box::new(source) })?;
        arrays.push((name, tensor));
    }
    Ok(arrays)
}

/// The size an entry claims bounds what is read, and memory grows with what arrives.
fn read_entry(entry: &mut impl Read, size: u64, expected: Option<DType>) -> Result<Tensor, NpyError> {
    let mut bytes = Vec::new();
    entry.take(size.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != size {
        return Err(NpyError::Length { found: bytes.len() as u64, expected: size });
    }
    read_npy(&Bytes::from(bytes), expected)
}

/// Writes a `.npy` file.
pub fn write_npy(mut file: impl Write, tensor: &Tensor) -> Result<(), NpyError> {
    file.write_all(&npy_header::print(tensor.dtype(), tensor.shape()))?;
    Ok(file.write_all(tensor.as_bytes())?)
}

/// Writes a `.npz` archive. Its bytes depend on the arrays alone.
pub fn write_npz(file: impl Write + Seek, arrays: &[(String, Tensor)]) -> Result<(), NpyError> {
    let mut archive = ZipWriter::new(file);
    for (name, tensor) in arrays {
        let is_large = tensor.as_bytes().len() as u64 >= u64::from(u32::MAX);
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).large_file(is_large);
        archive.start_file(format!("{name}.npy"), options)?;
        write_npy(&mut archive, tensor)?;
    }
    archive.finish()?;
    Ok(())
}

fn tensor_of(header: &Header, data: Bytes, expected: Option<DType>) -> Result<Tensor, NpyError> {
    let dtype = npy_header::element_type(&header.descr, expected)?;
    let elements = header.shape.iter().try_fold(1_usize, |count, &size| count.checked_mul(size));
    let Some(bytes) = elements.and_then(|elements| elements.checked_mul(dtype.size_bytes())) else {
        return Err(TensorError::TooLarge { dtype, shape: header.shape.clone() }.into());
    };
    if data.len() != bytes {
        return Err(NpyError::Length { found: data.len() as u64, expected: bytes as u64 });
    }
    // With fewer than two axes, or none longer than 1, both orders are the same bytes.
    let has_order = header.shape.iter().filter(|&&size| size > 1).count() > 1;
    let data = if header.is_fortran && has_order { to_c_order(&data, &header.shape, dtype.size_bytes()) } else { data };
    Ok(Tensor::new(dtype, header.shape.clone(), data)?)
}

/// Elements whose first axis varies fastest, as elements whose last axis does.
fn to_c_order(data: &[u8], shape: &[usize], size_bytes: usize) -> Bytes {
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = size_bytes;
    for &size in shape {
        strides.push(stride);
        stride *= size;
    }
    let mut ordered = Vec::with_capacity(data.len());
    let mut index = vec![0; shape.len()];
    while ordered.len() < data.len() {
        let at: usize = index.iter().zip(&strides).map(|(index, stride)| index * stride).sum();
        ordered.extend_from_slice(&data[at..at + size_bytes]);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    ordered.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, data: &[u8]) -> Bytes {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(data);
        bytes.into()
    }

    #[test]
    fn every_element_type_comes_back() {
        for dtype in DType::ALL {
            let tensor = Tensor::full(dtype, [2, 3], 1.0).unwrap();
            let mut bytes = Vec::new();
            write_npy(&mut bytes, &tensor).unwrap();
            assert_eq!(read_npy(&bytes.into(), Some(dtype)).unwrap(), tensor, "{dtype}");
        }
    }

    #[test]
    fn scalars_and_empty_arrays_come_back() {
        for tensor in [Tensor::scalar(7_i64), Tensor::zeros(DType::F32, [2, 0, 3]).unwrap()] {
            let mut bytes = Vec::new();
            write_npy(&mut bytes, &tensor).unwrap();
            assert_eq!(read_npy(&bytes.into(), None).unwrap(), tensor);
        }
    }

    #[test]
    fn fortran_order_is_converted() {
        let bytes = npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }\n", &[1, 4, 2, 5, 3, 6]);
        let expected = Tensor::from_vec([2, 3], vec![1_u8, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(read_npy(&bytes, None).unwrap(), expected);
    }

    #[test]
    fn two_raw_bytes_are_bf16_unless_another_type_is_expected() {
        let bytes = npy("{'descr': '|V2', 'fortran_order': False, 'shape': (1,)}", &[0x80, 0x3f]);
        assert_eq!(read_npy(&bytes, None).unwrap(), Tensor::full(DType::BF16, [1], 1.0).unwrap());
    }

    #[test]
    fn sizes_that_do_not_match_the_data_are_errors() {
        let message = |shape: &str, data: &[u8]| {
            let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}");
            read_npy(&npy(&header, data), None).unwrap_err().to_string()
        };
        assert_eq!(message("(2,)", &[0; 7]), "the array has 7 bytes of data; 8 are expected");
        assert_eq!(message("(2,)", &[0; 9]), "the array has 9 bytes of data; 8 are expected");
        let huge = message("(9223372036854775807, 9223372036854775807)", &[]);
        assert!(huge.ends_with("size in bytes overflows"), "{huge}");
    }

    #[test]
    fn cutting_a_file_anywhere_is_an_error_and_no_panic() {
        let mut bytes = Vec::new();
        write_npy(&mut bytes, &Tensor::zeros(DType::F32, [3]).unwrap()).unwrap();
        for end in 0..bytes.len() {
            assert!(read_npy(&Bytes::copy_from_slice(&bytes[..end]), None).is_err(), "{end}");
        }
    }

    #[test]
    fn an_archive_comes_back_in_order() {
        let arrays = vec![
            ("b/1".to_string(), Tensor::scalar(1.5_f32)),
            ("a".to_string(), Tensor::from_bools([2], &[true, false]).unwrap()),
        ];
        let mut file = Cursor::new(Vec::new());
        write_npz(&mut file, &arrays).unwrap();
        assert_eq!(read_npz(&file.into_inner().into(), |_| None).unwrap(), arrays);
    }

    #[test]
    fn a_damaged_archive_is_an_error() {
        let mut file = Cursor::new(Vec::new());
        write_npz(&mut file, &[("a".to_string(), Tensor::zeros(DType::F32, [64]).unwrap())]).unwrap();
        let bytes = file.into_inner();
        for end in 0..bytes.len() {
            assert!(read_npz(&Bytes::copy_from_slice(&bytes[..end]), |_| None).is_err(), "{end}");
        }
        let mut flipped = bytes.clone();
        let data_at = bytes.len() / 2;
        flipped[data_at] ^= 1;
        let message = read_npz(&flipped.into(), |_| None).unwrap_err().to_string();
        assert!(message.contains("array 'a'"), "{message}");
    }
}
