//! Constants: round trip, damage, sharing.

use super::*;
use crate::disk::RealDisk;
use crate::testing::constant;

fn store(dir: &Path) -> WeightStore {
    let layout = Layout::new(dir);
    layout.create(&RealDisk, None).unwrap();
    let files = Files { disk: Arc::new(RealDisk), layout, is_network: false, is_writable: true };
    WeightStore::new(Some(files), Arc::new(|_| {}))
}

#[test]
fn what_is_put_and_published_is_mapped_by_the_next_process() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [
        constant(3, 10_000),
        constant(0, 0),
        Tensor::scalar(1.5_f32),
        Tensor::from_bools(vec![3], &[true, false, true]).unwrap(),
    ];
    let writer = store(dir.path());
    for tensor in &tensors {
        let digest = writer.put(tensor).unwrap();
        assert!(writer.publish_file(&digest).unwrap() > 0);
        assert_eq!(writer.publish_file(&digest).unwrap(), 0);
    }
    let reader = store(dir.path());
    for tensor in &tensors {
        assert_eq!(reader.get(&tensor.digest()).unwrap(), *tensor);
    }
    assert_eq!(reader.get(&tensors[0].digest()).unwrap().as_bytes().as_ptr().addr() % HEADER_BYTES, 0);
}

#[test]
fn a_constant_is_in_memory_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let digest = store.put(&constant(1, 100)).unwrap();
    store.put(&constant(1, 100)).unwrap();
    assert_eq!(store.resident(), (1, 100));
    let address = |store: &WeightStore| store.get(&digest).unwrap().as_bytes().as_ptr().addr();
    store.publish_file(&digest).unwrap();
    assert_eq!(address(&store), address(&store.clone()));
    store.retain(&BTreeSet::new(), Unnamed::AllGo);
    assert_eq!(store.resident(), (0, 0));
    assert!(store.get(&digest).is_ok());
}

#[test]
fn every_flipped_bit_and_every_cut_of_a_file_is_found() {
    let tensor = constant(7, 64);
    let mut file = header(&tensor, Path::new("test")).unwrap();
    file.extend_from_slice(tensor.as_bytes());
    assert_eq!(parse(&tensor.digest(), Bytes::from(file.clone()), &FilePages::default()), Ok(tensor.clone()));
    for bit in 0..file.len() * 8 {
        let mut changed = file.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(
            matches!(parse(&tensor.digest(), Bytes::from(changed), &FilePages::default()), Err(Miss::Corrupt { .. })),
            "bit {bit}"
        );
    }
    for length in 0..file.len() {
        assert!(
            parse(&tensor.digest(), Bytes::from(file[..length].to_vec()), &FilePages::default()).is_err(),
            "length {length}"
        );
    }
}

#[test]
fn a_damaged_file_is_quarantined_and_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let tensor = constant(7, 64);
    let path = Layout::new(dir.path()).weight(&tensor.digest());
    let first = store(dir.path());
    first.put(&tensor).unwrap();
    first.publish_file(&tensor.digest()).unwrap();
    std::fs::write(&path, b"rot").unwrap();
    let second = store(dir.path());
    assert!(matches!(second.get(&tensor.digest()), Err(StoreError::Corrupt(_))));
    assert!(matches!(second.get(&tensor.digest()), Err(StoreError::Missing(_))));
    std::fs::write(&path, b"rot again").unwrap();
    second.put(&tensor).unwrap();
    second.publish_file(&tensor.digest()).unwrap();
    assert_eq!(store(dir.path()).get(&tensor.digest()).unwrap(), tensor);
}
