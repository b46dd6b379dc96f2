//! SparseTensorProto → a dense Tensor.
//!
//! Positions are either linear, `[n]`, or one row of coordinates each, `[n, rank]`; both must ascend strictly, which
//! also makes them distinct. The dense size has its own limit, since nothing in the file has to pay for it.

use bytes::Bytes;
use precast_tensor::{DType, Tensor};

use super::error::{Quoted, ReadError};
use super::external::ExternalFiles;
use super::limits::{Budget, Limits};
use super::tensor_data::{TensorSize, read_tensor, reserve, tensor_fault};
use crate::proto::SparseTensorProto;

/// Reads a sparse tensor and fills the gaps with zeros. Its name is that of its values.
pub(super) fn read_sparse_tensor(
    proto: &SparseTensorProto,
    limits: &Limits,
    files: &ExternalFiles,
) -> Result<Tensor, ReadError> {
    let Some(values) = &proto.values else {
        return Err(ReadError::tensor("", "a sparse tensor without values"));
    };
    let name = values.name.as_str();
    let values = read_tensor(values, limits, files)?;
    let &[count] = values.shape() else {
        let problem = format!("sparse values have shape {:?}, expected one dimension", values.shape());
        return Err(ReadError::tensor(name, problem));
    };
    let dtype = values.dtype();
    let size = TensorSize::new(name, dtype, &proto.dims, limits)?;
    let dense_bytes = size.elements.saturating_mul(dtype.size_bytes());
    let dense_bytes_u64 = u64::try_from(dense_bytes).unwrap_or(u64::MAX);
    if dense_bytes_u64 > limits.sparse_bytes {
        let place = format!("sparse tensor {}", Quoted::new(name));
        let budget = Budget::SparseBytes;
        return Err(ReadError::OverLimit { place, budget, value: dense_bytes_u64, limit: limits.sparse_bytes });
    }
    let positions = read_positions(proto, name, count, &size, limits, files)?;
    let mut dense = reserve(name, dense_bytes)?;
    dense.resize(dense_bytes, 0);
    let element_bytes = dtype.size_bytes();
    for (&position, element) in positions.iter().zip(values.bytes().chunks_exact(element_bytes)) {
        let start = position.saturating_mul(element_bytes);
        let slot = dense.get_mut(start..start.saturating_add(element_bytes));
        slot.expect("positions are below the element count").copy_from_slice(element);
    }
    Tensor::new(dtype, size.shape, Bytes::from(dense)).map_err(|error| tensor_fault(name, &error))
}

/// Linear positions, ascending and inside the tensor.
fn read_positions(
    proto: &SparseTensorProto,
    name: &str,
    count: usize,
    size: &TensorSize,
    limits: &Limits,
    files: &ExternalFiles,
) -> Result<Vec<usize>, ReadError> {
    let fault = |problem: String| ReadError::tensor(name, problem);
    let Some(indices) = &proto.indices else {
        return Err(fault("a sparse tensor without indices".into()));
    };
    let indices = read_tensor(indices, limits, files)?;
    let rank = size.shape.len();
    let is_linear = indices.shape() == [count];
    if indices.dtype() != DType::I64 || !(is_linear || indices.shape() == [count, rank]) {
        let (dtype, shape) = (indices.dtype(), indices.shape());
        let problem = format!("sparse indices are {dtype} {shape:?}, expected i64 [{count}] or [{count}, {rank}]");
        return Err(fault(problem));
    }
    let linear_extent = [size.elements];
    let extents = if is_linear { linear_extent.as_slice() } else { size.shape.as_slice() };
    let coordinates: Vec<i64> =
        indices.bytes().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    if count > 0 && extents.is_empty() {
        return Err(fault("sparse indices without coordinates, expected one linear index for a scalar".into()));
    }

    let mut positions = Vec::new();
    for row in coordinates.chunks_exact(extents.len().max(1)) {
        let Some(position) = linear_position(row, extents) else {
            return Err(fault(format!("sparse index {row:?} is outside the shape {:?}", size.shape)));
        };
        if positions.last().is_some_and(|&previous| previous >= position) {
            return Err(fault(format!("sparse index {row:?} does not ascend")));
        }
        positions.push(position);
    }
    Ok(positions)
}

fn linear_position(row: &[i64], extents: &[usize]) -> Option<usize> {
    row.iter().zip(extents).try_fold(0usize, |position, (&index, &extent)| {
        let index = usize::try_from(index).ok().filter(|&index| index < extent)?;
        position.checked_mul(extent)?.checked_add(index)
    })
}
