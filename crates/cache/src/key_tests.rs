//! Key sensitivity, canonical form and diffs.

use proptest::prelude::*;

use super::*;
use crate::testing::record;

type Mutation = (&'static str, fn(&mut KeyRecord));

fn mutations() -> Vec<Mutation> {
    vec![
        ("schema", |record| record.schema.push('x')),
        ("compiler", |record| record.compiler.push('x')),
        ("graph", |record| record.graph.0[31] ^= 1),
        ("weights", |record| record.weights.0[0] ^= 1),
        ("bucket.batch", |record| record.bucket = Bucket::new([("batch".to_string(), 5)])),
        ("types", |record| record.types[0] = "f16[4]".to_string()),
        ("precision.float", |record| drop(record.precision.insert("float".into(), "f16".into()))),
        ("calibration", |record| record.calibration = Some(String::new())),
        ("options.fast_math", |record| drop(record.options.insert("fast_math".into(), "true".into()))),
        ("options.new", |record| drop(record.options.insert("new".into(), String::new()))),
        ("tuning", |record| record.tuning = Some(Digest([0; 32]))),
        ("target", |record| record.target.push_str(" avx512")),
        ("toolchain", |record| record.toolchain.push('x')),
        ("driver", |record| record.driver = Some(String::new())),
        ("custom_ops.mine", |record| drop(record.custom_ops.insert("mine".into(), "1".into()))),
        ("assertions.pad.batch", |record| drop(record.assertions.insert("pad.batch".into(), "zeros".into()))),
    ]
}

#[test]
fn each_field_changes_the_key_and_is_named_by_the_diff() {
    let base = record("model", 4);
    for (field, mutate) in mutations() {
        let mut changed = base.clone();
        mutate(&mut changed);
        assert_ne!(base.key(), changed.key(), "{field}");
        let fields: Vec<String> = base.diff(&changed).into_iter().map(|diff| diff.field).collect();
        assert_eq!(fields, [field]);
    }
}

#[test]
fn every_field_has_a_mutation() {
    let named: std::collections::BTreeSet<&str> =
        mutations().iter().map(|(field, _)| field.split('.').next().unwrap()).collect();
    let all: std::collections::BTreeSet<&str> = record("m", 1).lines().iter().map(|(name, _)| *name).collect();
    assert_eq!(named, all);
}

#[test]
fn the_golden_key_has_not_moved() {
    let mut golden = record("model", 4);
    golden.schema = "golden".to_string();
    golden.compiler = "golden".to_string();
    assert_eq!(golden.key().to_string(), "490f45ef4d3b793de43f5accabbe087ca84b1d8ff239e2a6276cc8a28481369c");
}

#[test]
fn parts_do_not_run_into_each_other() {
    let with_types =
        |types: &[&str]| KeyRecord { types: types.iter().map(|t| t.to_string()).collect(), ..record("m", 1) };
    let lists: [&[&str]; 6] = [&[], &[""], &["", ""], &["ab", "c"], &["a", "bc"], &["abc"]];
    let keys: std::collections::BTreeSet<ProgramKey> = lists.iter().map(|types| with_types(types).key()).collect();
    assert_eq!(keys.len(), lists.len());
}

#[test]
fn fewer_bits_keep_the_first_ones() {
    let bytes = record("model", 4).canonical_bytes();
    let full = ProgramKey::of(&bytes, KEY_BITS).0;
    assert_eq!(ProgramKey::of(&bytes, 8).0[0], full[0]);
    assert_eq!(ProgramKey::of(&bytes, 8).0[1..], [0; 31]);
    assert_eq!(ProgramKey::of(&bytes, 12).0[1], full[1] & 0xf0);
}

#[test]
fn every_truncation_of_the_bytes_is_refused() {
    let bytes = record("model", 4).canonical_bytes();
    for length in 0..bytes.len() {
        assert!(KeyRecord::from_canonical_bytes(&bytes[..length]).is_err(), "length {length}");
    }
}

proptest! {
    #[test]
    fn canonical_bytes_read_back(
        texts in proptest::collection::vec(".{0,6}", 4),
        types in proptest::collection::vec("[a-c]{0,3}", 0..4),
        options in proptest::collection::btree_map("[a-c]{0,3}", "[a-c]{0,3}", 0..4),
        extent in any::<i64>(),
        driver in proptest::option::of("[a-c]{0,3}"),
    ) {
        let base = record("model", extent);
        let made = KeyRecord { compiler: texts[0].clone(), target: texts[1].clone(), toolchain: texts[2].clone(),
            types, options, driver, ..base };
        prop_assert_eq!(KeyRecord::from_canonical_bytes(&made.canonical_bytes()), Ok(made));
    }

    #[test]
    fn any_bytes_are_refused_or_canonical(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(KeyRecord::from_canonical_bytes(&bytes).is_err());
    }

    #[test]
    fn a_changed_byte_is_refused_or_another_record(at in any::<proptest::sample::Index>(), flip in 1..=255_u8) {
        let base = record("model", 4);
        let mut bytes = base.canonical_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(changed) = KeyRecord::from_canonical_bytes(&bytes) {
            prop_assert!(!base.diff(&changed).is_empty());
        }
    }
}
