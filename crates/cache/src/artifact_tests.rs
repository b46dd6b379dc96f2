//! Artifacts as hostile input: flips, cuts, swaps, requirements.

use proptest::prelude::*;

use super::*;
use crate::key::KEY_BITS;
use crate::testing::{program, record};

fn sample() -> (Wanted, Vec<u8>) {
    let wanted = Wanted::new(&record("model", 4), KEY_BITS);
    let bytes = encode(&wanted.bytes, &program("model", 4), &Requires::default(), &Signing::default()).unwrap();
    (wanted, bytes)
}

#[test]
fn an_artifact_reads_back_and_its_bytes_are_a_function_of_its_contents() {
    let (wanted, bytes) = sample();
    let (manifest, read) = verify(&bytes, &wanted, &Provides::default(), &Signing::default()).unwrap();
    assert_eq!(read, program("model", 4));
    assert_eq!(manifest.record().unwrap(), record("model", 4));
    assert_eq!(sample().1, bytes);
}

#[test]
fn every_flipped_bit_is_found_and_classed_as_damage() {
    let (wanted, bytes) = sample();
    // The header page of the Program inside is mostly zeros; every bit before it and every 5th byte after it.
    let inner = bytes.windows(8).position(|window| window == precast_program::file::MAGIC).unwrap();
    let bits = (0..inner * 8 + 64).chain((inner..bytes.len()).step_by(5).map(|byte| byte * 8 + byte % 8));
    for bit in bits {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let miss = verify(&changed, &wanted, &Provides::default(), &Signing::default()).unwrap_err();
        assert!(matches!(miss, Miss::Corrupt { .. }), "bit {bit}: {miss}");
    }
}

#[test]
fn every_truncation_is_found_and_classed_as_damage() {
    let (wanted, bytes) = sample();
    for length in 0..bytes.len() {
        let miss = verify(&bytes[..length], &wanted, &Provides::default(), &Signing::default()).unwrap_err();
        assert!(matches!(miss, Miss::Corrupt { .. }), "length {length}: {miss}");
    }
}

#[test]
fn bytes_after_the_end_are_found() {
    let (wanted, mut bytes) = sample();
    bytes.push(0);
    assert!(matches!(verify(&bytes, &wanted, &Provides::default(), &Signing::default()), Err(Miss::Corrupt { .. })));
}

#[test]
fn a_whole_artifact_of_another_record_is_damage_unless_the_keys_collide() {
    let (wanted, _) = sample();
    let other = record("other", 8);
    let bytes =
        encode(&other.canonical_bytes(), &program("other", 8), &Requires::default(), &Signing::default()).unwrap();
    let miss = verify(&bytes, &wanted, &Provides::default(), &Signing::default()).unwrap_err();
    assert!(matches!(&miss, Miss::Corrupt { section, .. } if section == "name"), "{miss}");
    let colliding = Wanted::new(&record("model", 4), 0);
    let miss = verify(&bytes, &colliding, &Provides::default(), &Signing::default()).unwrap_err();
    assert!(matches!(&miss, Miss::Incompatible { field, .. } if field == "graph"), "{miss}");
}

#[test]
fn another_format_is_told_from_damage() {
    let (wanted, mut bytes) = sample();
    bytes[8] = FORMAT as u8 + 1;
    let end = bytes.len() - DIGEST_BYTES;
    let trailer = blake3::hash(&bytes[..end]);
    bytes[end..].copy_from_slice(trailer.as_bytes());
    let miss = verify(&bytes, &wanted, &Provides::default(), &Signing::default()).unwrap_err();
    assert!(matches!(&miss, Miss::Incompatible { field, .. } if field == "schema"), "{miss}");
}

#[test]
fn what_a_program_requires_is_checked_before_it_is_decoded() {
    let wanted = Wanted::new(&record("model", 4), KEY_BITS);
    let requires =
        Requires { driver_min: Some("550.54".to_string()), features: ["sm_90".to_string()].into(), memory_bytes: 1000 };
    let bytes = encode(&wanted.bytes, &program("model", 4), &requires, &Signing::default()).unwrap();
    let good = Provides {
        driver: Some("550.163.01".to_string()),
        features: ["sm_90".to_string(), "more".to_string()].into(),
        memory_bytes: Some(1000),
    };
    assert!(verify(&bytes, &wanted, &good, &Signing::default()).is_ok());
    let bad = [
        ("driver", Provides { driver: Some("535.9".to_string()), ..good.clone() }),
        ("driver", Provides { driver: None, ..good.clone() }),
        ("features", Provides { features: BTreeSet::new(), ..good.clone() }),
        ("memory", Provides { memory_bytes: Some(999), ..good.clone() }),
    ];
    for (expected, provides) in bad {
        let miss = verify(&bytes, &wanted, &provides, &Signing::default()).unwrap_err();
        assert!(matches!(&miss, Miss::Incompatible { field, .. } if field == expected), "{expected}: {miss}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (wanted, _) = sample();
        prop_assert!(verify(&bytes, &wanted, &Provides::default(), &Signing::default()).is_err());
    }

    /// Digests can be forged by whoever can write; the parser must stand that too.
    #[test]
    fn a_forged_manifest_never_panics(manifest in proptest::collection::vec(any::<u8>(), 0..300)) {
        let (wanted, _) = sample();
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&(manifest.len() as u64).to_le_bytes());
        bytes.extend_from_slice(blake3::hash(&manifest).as_bytes());
        bytes.extend_from_slice(&manifest);
        let trailer = blake3::hash(&bytes);
        bytes.extend_from_slice(trailer.as_bytes());
        prop_assert!(verify(&bytes, &wanted, &Provides::default(), &Signing::default()).is_err());
    }
}
