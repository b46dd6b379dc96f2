//! Tensors from files, by the file's extension: `.npy`, `.npz` and `.pb` (an ONNX TensorProto).

use std::path::Path;

use bytes::Bytes;
use precast_onnx::{Limits, decode_tensor, tensor_without_model};
use precast_tensor::{DType, Tensor};

use crate::error::Error;
use crate::npy::{NpyError, read_npy, read_npz};

/// The tensor of a file. Of an archive it is the array called `name`, or the only one there is.
pub fn read_tensor(path: &Path, name: &str, expected: Option<DType>) -> Result<Tensor, Error> {
    match extension(path) {
        Some("npy") => read_npy(&read_file(path)?, expected).map_err(|source| array_error(path, source)),
        Some("npz") => {
            let mut arrays = read_archive(path, |_| expected)?;
            if let Some(position) = arrays.iter().position(|(array, _)| array == name) {
                return Ok(arrays.swap_remove(position).1);
            }
            match (arrays.pop(), arrays.is_empty()) {
                (Some((_, tensor)), true) => Ok(tensor),
                (last, _) => {
                    let names: Vec<String> = arrays.iter().chain(&last).map(|(name, _)| format!("'{name}'")).collect();
                    let names = if names.is_empty() { "no arrays".to_string() } else { names.join(", ") };
                    Err(Error::Request(format!("'{}' has no array '{name}'; it has {names}", path.display())))
                }
            }
        }
        Some("pb") => {
            let limits = Limits::default();
            let tensor =
                decode_tensor(&read_file(path)?, &limits).and_then(|proto| tensor_without_model(&proto, &limits));
            tensor.map_err(|error| Error::Request(format!("'{}': {error}", path.display())))
        }
        Some(_) | None => {
            Err(Error::Request(format!("'{}' is not a tensor file: .npy, .npz or .pb is expected", path.display())))
        }
    }
}

/// All arrays of a `.npz` archive, in order.
pub fn read_archive(path: &Path, expected: impl Fn(&str) -> Option<DType>) -> Result<Vec<(String, Tensor)>, Error> {
    read_npz(&read_file(path)?, expected).map_err(|source| array_error(path, source))
}

/// The extension of a path, if it is text.
fn extension(path: &Path) -> Option<&str> {
    path.extension().and_then(|extension| extension.to_str())
}

fn read_file(path: &Path) -> Result<Bytes, Error> {
    let bytes = std::fs::read(path);
    let bytes = bytes.map_err(|source| Error::Io { action: "read", path: path.display().to_string(), source })?;
    Ok(Bytes::from(bytes))
}

fn array_error(path: &Path, source: NpyError) -> Error {
    Error::Array { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::{write_npy, write_npz};

    #[test]
    fn an_archive_gives_the_named_array_or_its_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("two.npz");
        let arrays = [("a".to_string(), Tensor::scalar(1_i64)), ("b".to_string(), Tensor::scalar(2_i64))];
        write_npz(std::fs::File::create(&path).unwrap(), &arrays).unwrap();
        assert_eq!(read_tensor(&path, "b", None).unwrap(), Tensor::scalar(2_i64));
        let message = read_tensor(&path, "c", None).unwrap_err().to_string();
        assert!(message.ends_with("has no array 'c'; it has 'a', 'b'"), "{message}");
        write_npz(std::fs::File::create(&path).unwrap(), &arrays[..1]).unwrap();
        assert_eq!(read_tensor(&path, "c", None).unwrap(), Tensor::scalar(1_i64));
    }

    #[test]
    fn the_extension_decides() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        write_npy(std::fs::File::create(&path).unwrap(), &Tensor::scalar(1.5_f32)).unwrap();
        assert_eq!(read_tensor(&path, "x", None).unwrap(), Tensor::scalar(1.5_f32));
        let other = folder.path().join("x.txt");
        let message = read_tensor(&other, "x", None).unwrap_err().to_string();
        assert!(message.ends_with("is not a tensor file: .npy, .npz or .pb is expected"), "{message}");
    }
}
