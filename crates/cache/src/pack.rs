//! A pack: the small constants of a model in one file, so that a model with hundreds of them costs a handful of
//! file-system calls. Magic, format, length of the index, the index, then the elements of each constant in its order.
//! Its name holds the digest of all that comes before the elements; those are under the digests in the index.

use bytes::Bytes;
use precast_tensor::{DType, Digest, FilePages, Tensor};
use serde::{Deserialize, Serialize};

use crate::miss::Miss;
use crate::publish::PART_BYTES;

/// First bytes of a pack.
pub const MAGIC: [u8; 8] = *b"PRECASTK";
const FORMAT: u32 = 1;
/// Magic, format and length of the index.
const INDEX_AT: usize = 8 + 4 + 8;
/// Elements begin at multiples of this, which is enough for every type and instruction.
const ALIGN: usize = 64;
/// Larger constants have files of their own, which models share.
pub(crate) const PACKED_BYTES_MAX: u64 = 256 << 10;

/// What the index says of one constant.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    digest: [u8; 32],
    dtype: String,
    shape: Vec<u64>,
}

/// A constant in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    digest: Digest,
    dtype: DType,
    shape: Vec<usize>,
    start: usize,
    bytes: usize,
}

/// A pack whose index is sound; the elements are checked when they are taken.
#[derive(Clone, Debug)]
pub(crate) struct Pack {
    name: Digest,
    bytes: Bytes,
    pages: FilePages,
    /// By digest.
    places: Vec<Place>,
}

/// A pack to be written: the same constants in the same order give the same bytes.
pub(crate) struct Encoded<'a> {
    /// Its name.
    pub(crate) name: Digest,
    head: Vec<u8>,
    tensors: &'a [(Digest, Tensor)],
}

impl Encoded<'_> {
    /// The bytes, one part after another; none is copied, and what lies in a mapped file is let go once it was read.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        const GAP: [u8; ALIGN] = [0; ALIGN];
        let mut end = self.head.len();
        let constants = self.tensors.iter().flat_map(move |(_, tensor)| {
            let gap = &GAP[..end.next_multiple_of(ALIGN) - end];
            end += gap.len() + tensor.as_bytes().len();
            std::iter::once(gap).chain(tensor.read_parts(PART_BYTES))
        });
        std::iter::once(&self.head[..]).chain(constants)
    }

    /// How many bytes the parts have.
    pub(crate) fn bytes(&self) -> usize {
        let end_after =
            |end: usize, (_, tensor): &(Digest, Tensor)| end.next_multiple_of(ALIGN) + tensor.as_bytes().len();
        self.tensors.iter().fold(self.head.len(), end_after)
    }
}

/// A pack of these constants.
pub(crate) fn encode(tensors: &[(Digest, Tensor)]) -> Result<Encoded<'_>, String> {
    let row = |(digest, tensor): &(Digest, Tensor)| Row {
        digest: digest.0,
        dtype: tensor.dtype().name().to_string(),
        shape: tensor.shape().iter().map(|&size| size as u64).collect(),
    };
    let index: Vec<Row> = tensors.iter().map(row).collect();
    let index = postcard::to_stdvec(&index).map_err(|error| format!("the index does not encode: {error}"))?;
    let mut head = Vec::with_capacity(INDEX_AT + index.len());
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&FORMAT.to_le_bytes());
    head.extend_from_slice(&(index.len() as u64).to_le_bytes());
    head.extend_from_slice(&index);
    Ok(Encoded { name: Digest::of_bytes(&head), head, tensors })
}

impl Pack {
    /// Checks everything but the elements.
    pub(crate) fn open(name: Digest, bytes: Bytes, pages: FilePages) -> Result<Pack, Miss> {
        let damaged = |expected: &str, got: String| Miss::corrupt(format!("pack {name}"), expected, got);
        let header = bytes.get(..INDEX_AT).ok_or_else(|| damaged("a header", format!("{} bytes", bytes.len())))?;
        let mut length = [0; 8];
        length.copy_from_slice(&header[12..]);
        let end = usize::try_from(u64::from_le_bytes(length)).ok().and_then(|length| length.checked_add(INDEX_AT));
        let before = end.and_then(|end| bytes.get(..end));
        let before = before.ok_or_else(|| damaged("an index", format!("{} bytes", bytes.len())))?;
        let got = Digest::of_bytes(before);
        if got != name || header[..8] != MAGIC {
            return Err(damaged("an index that agrees with the name", got.to_string()));
        }
        if header[8..12] != FORMAT.to_le_bytes() {
            let (field, want) = ("schema".to_string(), FORMAT.to_string());
            return Err(Miss::Incompatible { field, want, have: format!("{:?}", &header[8..12]) });
        }
        let index: Vec<Row> =
            postcard::from_bytes(&before[INDEX_AT..]).map_err(|error| damaged("an index", error.to_string()))?;
        let (mut end, mut places) = (before.len(), Vec::new());
        for row in index {
            let place = place(&row, end).ok_or_else(|| damaged("constants that fit", format!("{row:?}")))?;
            let gap = bytes.get(end..place.start).ok_or_else(|| damaged("more bytes", bytes.len().to_string()))?;
            if gap.iter().any(|&byte| byte != 0) {
                return Err(damaged("zeros between constants", "others".to_string()));
            }
            end = place.start + place.bytes;
            places.push(place);
        }
        if end != bytes.len() {
            return Err(damaged(&format!("{end} bytes"), bytes.len().to_string()));
        }
        // Looking between constants has brought all of the file into memory.
        pages.release(&bytes);
        places.sort_by_key(|place| place.digest);
        Ok(Pack { name, bytes, pages, places })
    }

    /// Digest in its name.
    pub(crate) fn name(&self) -> Digest {
        self.name
    }

    /// Its constants and their sizes.
    pub(crate) fn constants(&self) -> impl Iterator<Item = (Digest, u64)> {
        self.places.iter().map(|place| (place.digest, place.bytes as u64))
    }

    /// Whether the index has a constant.
    pub(crate) fn contains(&self, digest: &Digest) -> bool {
        self.places.binary_search_by_key(digest, |place| place.digest).is_ok()
    }

    /// A constant, verified; none if it is not in here.
    pub(crate) fn tensor(&self, digest: &Digest) -> Option<Result<Tensor, Miss>> {
        let place = &self.places[self.places.binary_search_by_key(digest, |place| place.digest).ok()?];
        let elements = self.bytes.slice(place.start..place.start + place.bytes);
        let damaged = |got: String| Miss::corrupt(format!("pack {}", self.name), digest, got);
        let tensor = match Tensor::new(place.dtype, place.shape.clone(), elements) {
            Ok(tensor) => tensor,
            Err(error) => return Some(Err(damaged(error.to_string()))),
        };
        let got = tensor.digest();
        Some(if got == *digest { Ok(tensor.in_pages(&self.pages)) } else { Err(damaged(got.to_string())) })
    }
}

/// Where a constant lies if the one before it ends here; none if that is beyond all addresses.
fn place(row: &Row, end: usize) -> Option<Place> {
    let dtype = DType::from_name(&row.dtype)?;
    let shape: Vec<usize> = row.shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<_>>()?;
    let elements = shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))?;
    let bytes = elements.checked_mul(dtype.size_bytes())?;
    let start = end.checked_next_multiple_of(ALIGN)?;
    start.checked_add(bytes)?;
    Some(Place { digest: Digest(row.digest), dtype, shape, start, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::constant;

    fn tensors() -> Vec<(Digest, Tensor)> {
        let tensors = [constant(3, 100), constant(0, 0), Tensor::scalar(1.5_f32), constant(7, 64)];
        tensors.map(|tensor| (tensor.digest(), tensor)).to_vec()
    }

    fn encoded() -> (Digest, Vec<u8>) {
        let tensors = tensors();
        let pack = encode(&tensors).unwrap();
        let bytes = pack.parts().collect::<Vec<_>>().concat();
        assert_eq!(pack.bytes(), bytes.len());
        (pack.name, bytes)
    }

    fn is_sound(name: Digest, bytes: Vec<u8>) -> bool {
        let Ok(pack) = Pack::open(name, Bytes::from(bytes), FilePages::default()) else { return false };
        pack.constants().all(|(digest, _)| pack.tensor(&digest).is_some_and(|tensor| tensor.is_ok()))
    }

    #[test]
    fn what_is_packed_comes_out_again() {
        let (name, bytes) = encoded();
        let pack = Pack::open(name, Bytes::from(bytes), FilePages::default()).unwrap();
        for (digest, tensor) in tensors() {
            assert_eq!(pack.tensor(&digest).unwrap().unwrap(), tensor);
        }
        assert!(pack.tensor(&constant(1, 1).digest()).is_none());
        assert_eq!(pack.constants().count(), 4);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_found() {
        let (name, bytes) = encoded();
        assert!(is_sound(name, bytes.clone()));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_sound(name, changed), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(!is_sound(name, bytes[..length].to_vec()), "length {length}");
        }
        assert!(!is_sound(name, [&bytes[..], &[0]].concat()));
    }

    #[test]
    fn an_index_that_lies_about_sizes_is_refused() {
        for shape in [vec![u64::MAX], vec![1 << 40, 1 << 40], vec![1 << 20]] {
            let row = Row { digest: [1; 32], dtype: "f32".to_string(), shape };
            let index = postcard::to_stdvec(&vec![row]).unwrap();
            let mut bytes = [&MAGIC[..], &FORMAT.to_le_bytes(), &(index.len() as u64).to_le_bytes()].concat();
            bytes.extend_from_slice(&index);
            assert!(!is_sound(Digest::of_bytes(&bytes), bytes));
        }
    }
}
