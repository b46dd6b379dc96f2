//! Shelves: what Buckets of one model share, damage, models that share nothing.

use std::sync::Arc;

use precast_program::ArtifactStore;

use super::*;
use crate::disk::RealDisk;
use crate::testing::{constant, files_below};

const LARGE: usize = PACKED_BYTES_MAX as usize + 1;

fn store(dir: &Path) -> WeightStore {
    let layout = Layout::new(dir);
    layout.create(&RealDisk, None).unwrap();
    let files = Files { disk: Arc::new(RealDisk), layout, is_network: false, is_writable: true };
    WeightStore::new(Some(files), Arc::new(|_| {}))
}

fn model(name: &str) -> Digest {
    Digest::of_bytes(name.as_bytes())
}

/// Puts and publishes constants as a Bucket of a model does; gives the bytes added.
fn publish(store: &WeightStore, model: Digest, tensors: &[Tensor]) -> u64 {
    let put = |tensor: &Tensor| (store.put(tensor).unwrap(), tensor.as_bytes().len() as u64);
    let constants = tensors.iter().map(put).collect();
    Shelf::new(store, model).publish(&constants).unwrap()
}

fn files(dir: &Path) -> usize {
    files_below(&dir.join("weights")).len()
}

#[test]
fn small_constants_of_a_model_are_one_file_and_a_bucket_adds_only_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let writer = store(dir.path());
    let first = [constant(1, 100), constant(2, 100), constant(3, LARGE)];
    assert!(publish(&writer, model("m"), &first) > 0);
    assert_eq!(files(dir.path()), 2);
    assert_eq!(publish(&writer, model("m"), &first), 0);
    let other = store(dir.path());
    assert!(publish(&other, model("m"), &[constant(1, 100), constant(4, 100)]) < 1000);
    assert_eq!(files(dir.path()), 3);
    assert_eq!(publish(&store(dir.path()), model("m"), &[constant(4, 100), constant(2, 100), constant(1, 100)]), 0);
    let reader = store(dir.path());
    let mut shelf = Shelf::new(&reader, model("m"));
    for tensor in first.iter().chain([&constant(4, 100)]) {
        assert_eq!(shelf.load(&tensor.digest()).unwrap(), *tensor);
    }
    assert!(Shelf::new(&store(dir.path()), model("n")).load(&constant(1, 100).digest()).is_err());
}

#[test]
fn published_constants_are_mapped_and_aligned() {
    let dir = tempfile::tempdir().unwrap();
    let writer = store(dir.path());
    let tensors = [constant(1, 100), constant(2, 7), constant(3, 100)];
    publish(&writer, model("m"), &tensors);
    for tensor in &tensors {
        assert!(writer.is_mapped(&tensor.digest()));
        assert_eq!(writer.get(&tensor.digest()).unwrap().as_bytes().as_ptr().addr() % 64, 0);
    }
}

#[test]
fn a_damaged_pack_is_quarantined_and_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let tensors = [constant(1, 100), constant(2, 100)];
    publish(&store(dir.path()), model("m"), &tensors);
    let path = files_below(&dir.path().join("weights")).pop().unwrap();
    for at in [0, std::fs::read(&path).unwrap().len() - 1] {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let reader = store(dir.path());
        let damaged: Vec<bool> =
            tensors.iter().map(|it| Shelf::new(&reader, model("m")).load(&it.digest()).is_err()).collect();
        assert!(damaged.contains(&true));
        assert!(publish(&reader, model("m"), &tensors) > 0);
        assert_eq!(files(dir.path()), 1);
        assert_eq!(store(dir.path()).verify_pack(Layout::pack_of(&name(&path)).unwrap().1, &path).unwrap(), 2);
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_string()
}
