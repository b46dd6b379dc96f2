//! Signatures: what is loaded, what is published, and who may write the root (T11).

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::cache::{Fetched, Origin, ProgramCache};
use crate::disk::Call;
use crate::fault::{Fault, FaultyDisk};
use crate::miss::{Event, GetError};
use crate::options::{CacheOptions, Mode, RemoteOptions};
use crate::testing::{Told, constant, files_below, program, program_with, record};

fn signs(seed: u8) -> Signing {
    Signing { key: Some(SignKey::of_seed(seed)), require: None }
}

fn requires(seeds: &[u8]) -> Signing {
    let keys = seeds.iter().map(|&seed| SignKey::of_seed(seed).public()).collect();
    Signing { key: None, require: Some(keys) }
}

fn open(root: &Path, sign: Signing, told: &Told) -> ProgramCache {
    ProgramCache::open(CacheOptions { sign, ..told.options(root) }).unwrap()
}

fn get(cache: &ProgramCache) -> Fetched {
    let tensor = constant(3, 2000);
    let got: Result<Fetched, GetError<Infallible>> =
        cache.get_or(&record("m", 4), || Ok(program_with(cache, "m", 4, &tensor)));
    got.unwrap()
}

fn signature_of(miss: Result<Arc<precast_program::Program>, Miss>) -> String {
    match miss {
        Err(Miss::Incompatible { field, have, .. }) if field == "signature" => have,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_signed_program_is_loaded_by_those_who_require_its_key() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    assert_eq!(get(&open(dir.path(), signs(1), &told)).origin, Origin::Compiled);
    for accepting in [requires(&[1]), requires(&[2, 1]), Signing::default(), signs(2)] {
        assert_eq!(get(&open(dir.path(), accepting, &told)).origin, Origin::Disk);
    }
    assert_eq!(told.events(), []);
}

#[test]
fn a_missing_or_wrong_signature_is_incompatible_and_stays() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    get(&open(dir.path(), signs(2), &told));
    let wrong = open(dir.path(), requires(&[1]), &told);
    assert_eq!(signature_of(wrong.probe(&record("m", 4))), "of none of them");
    // The request is served by a compile, which nobody could load and so is not filed.
    let before = files_below(dir.path());
    assert_eq!(get(&wrong).origin, Origin::Compiled);
    assert_eq!(files_below(dir.path()), before);
    assert!(matches!(told.events()[..], [Event::Unsigned { .. }]), "{:?}", told.events());
    assert!(matches!(wrong.verify().unwrap().problems[0].miss, Miss::Incompatible { .. }));
    assert_eq!(get(&open(dir.path(), signs(2), &told)).origin, Origin::Disk);

    let unsigned = tempfile::tempdir().unwrap();
    get(&open(unsigned.path(), Signing::default(), &told));
    assert_eq!(signature_of(open(unsigned.path(), requires(&[2]), &told).probe(&record("m", 4))), "none");
    let lookup = CacheOptions { sign: requires(&[2]), mode: Mode::LookupOnly, ..told.options(unsigned.path()) };
    let got: Result<Fetched, GetError<Infallible>> = ProgramCache::open(lookup)
        .unwrap()
        .get_or(&record("m", 4), || -> Result<precast_program::Program, _> { panic!("a lookup compiles nothing") });
    assert!(matches!(got, Err(GetError::Missing(Miss::Incompatible { .. }))));
}

#[test]
fn every_bit_of_manifest_and_signature_counts_before_code_is_parsed() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    get(&open(dir.path(), signs(1), &told));
    let file = files_below(&dir.path().join("programs")).remove(0);
    let good = std::fs::read(&file).unwrap();
    let reading = CacheOptions { sign: requires(&[1]), mode: Mode::ReadOnly, ..told.options(dir.path()) };
    let manifest_bytes = u64::from_le_bytes(good[12..20].try_into().unwrap()) as usize;
    let signature_at = 52 + manifest_bytes + 1;
    for at in (0..signature_at + SIGNATURE_BYTES).step_by(3) {
        let mut bad = good.clone();
        bad[at] ^= 4;
        std::fs::write(&file, &bad).unwrap();
        assert!(ProgramCache::open(reading.clone()).unwrap().probe(&record("m", 4)).is_err(), "byte {at}");
    }
    // An attacker who makes all digests anew still lacks the key, and the code is not looked at: it is damaged here.
    let mut forged = good.clone();
    forged[signature_at] ^= 1;
    *forged.last_mut().unwrap() ^= 1;
    std::fs::write(&file, &forged).unwrap();
    let probed = ProgramCache::open(reading.clone()).unwrap().probe(&record("m", 4));
    assert_eq!(signature_of(probed), "of none of them");
    std::fs::write(&file, &good).unwrap();
    assert!(ProgramCache::open(reading).unwrap().probe(&record("m", 4)).is_ok());
}

/// H17: what was signed for one Program says nothing of another, and a signed head nothing of another's code.
#[test]
fn a_replayed_signature_and_swapped_sections_are_never_loaded() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    let signing = open(dir.path(), signs(1), &told);
    let file_of = |batch: i64| {
        let got: Result<Fetched, GetError<Infallible>> =
            signing.get_or(&record("m", batch), || Ok(program("m", batch)));
        assert_eq!(got.unwrap().origin, Origin::Compiled);
        signing.layout.program(&signing.key(&record("m", batch)))
    };
    let (own, other) = (file_of(4), file_of(8));
    let (own_bytes, other_bytes) = (std::fs::read(&own).unwrap(), std::fs::read(&other).unwrap());
    let signature_of = |bytes: &[u8]| {
        let manifest_bytes = u64::from_le_bytes(bytes[12..20].try_into().unwrap()) as usize;
        52 + manifest_bytes + 1..52 + manifest_bytes + 1 + SIGNATURE_BYTES
    };
    let (own_signature, other_signature) = (signature_of(&own_bytes), signature_of(&other_bytes));
    let mut replayed = own_bytes.clone();
    replayed[own_signature.clone()].copy_from_slice(&other_bytes[other_signature.clone()]);
    let other_code = [&own_bytes[..own_signature.end], &other_bytes[other_signature.end..]].concat();
    let other_head = [&other_bytes[..other_signature.end], &own_bytes[own_signature.end..]].concat();
    let reading = CacheOptions { sign: requires(&[1]), mode: Mode::ReadOnly, ..told.options(dir.path()) };
    let probe = || ProgramCache::open(reading.clone()).unwrap().probe(&record("m", 4));
    for (forgery, bytes) in [
        ("the signature of another", &replayed),
        ("the code of another", &other_code),
        ("the head of another", &other_head),
        ("another as a whole", &other_bytes),
    ] {
        std::fs::write(&own, bytes).unwrap();
        assert!(probe().is_err(), "{forgery} was loaded");
    }
    std::fs::write(&own, &own_bytes).unwrap();
    assert!(probe().is_ok());
}

#[test]
fn who_requires_without_a_key_publishes_nothing_and_who_signs_too_does() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    assert_eq!(get(&open(dir.path(), requires(&[1]), &told)).origin, Origin::Compiled);
    assert!(files_below(&dir.path().join("programs")).is_empty());
    let both = Signing { key: Some(SignKey::of_seed(1)), ..requires(&[1]) };
    assert_eq!(get(&open(dir.path(), both, &told)).origin, Origin::Compiled);
    assert_eq!(get(&open(dir.path(), requires(&[1]), &told)).origin, Origin::Disk);
}

#[test]
fn a_shared_root_is_accepted_where_signatures_are_required() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    get(&open(dir.path(), signs(1), &told));
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let refused = ProgramCache::open(told.options(dir.path()));
    assert!(matches!(refused, Err(CacheError::Untrusted { .. })));
    // A file that others may write is not mapped: it could change after it was checked.
    let disk = FaultyDisk::new(|call, _| (call == Call::Map).then_some(Fault::Before(5)));
    let options = CacheOptions { disk: Arc::new(disk), sign: requires(&[1]), ..told.options(dir.path()) };
    assert_eq!(get(&ProgramCache::open(options).unwrap()).origin, Origin::Disk);
    assert!(told.events().iter().any(|event| matches!(event, Event::SharedRoot { .. })));
}

#[test]
fn an_unsigned_program_of_a_store_is_not_fetched() {
    let (dir, told) = (tempfile::tempdir().unwrap(), Told::default());
    let store = dir.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let remote = Some(RemoteOptions::new(format!("file://{}", store.display())));
    let shared = |root: &str, sign: Signing| {
        let options = CacheOptions { sign, remote: remote.clone(), ..told.options(&dir.path().join(root)) };
        ProgramCache::open(options).unwrap()
    };
    let one = shared("one", Signing::default());
    get(&one);
    assert!(one.flush(std::time::Duration::from_secs(20)));
    assert_eq!(get(&shared("other", requires(&[1]))).origin, Origin::Compiled);
    let pulled = shared("pulled", requires(&[1])).pull().unwrap();
    assert_eq!((pulled.programs, pulled.skipped.len()), (0, 1));
    assert!(matches!(pulled.skipped[0].1, Miss::Incompatible { .. }));
}

/// The form that `openssl genpkey -algorithm ed25519` writes, of the bytes 0 to 31, and `openssl pkey -pubout` of it.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f
-----END PRIVATE KEY-----
";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAA6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=
-----END PUBLIC KEY-----
";

#[test]
fn keys_are_read_from_the_files_of_openssl() {
    let public = SignKey::from_pem(PRIVATE).unwrap().public();
    assert_eq!(PublicKey::all_from_pem(&format!("# one\n{PUBLIC}{PUBLIC}")).unwrap(), [public.clone(), public]);
    assert!(SignKey::from_pem(PUBLIC).is_err() && SignKey::from_pem("").is_err());
    assert!(PublicKey::all_from_pem(PRIVATE).is_err() && PublicKey::all_from_pem("").is_err());
}
