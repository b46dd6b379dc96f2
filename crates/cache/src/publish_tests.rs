//! Publishing by each of its three ways, sweeping and quarantine.

use std::sync::{Arc, Mutex};

use super::*;
use crate::disk::RealDisk;
use crate::fault::{Fault, FaultyDisk};
use crate::options::ORPHAN_AGE_DEFAULT;
use crate::testing::files_below;

struct Fixture {
    dir: tempfile::TempDir,
    layout: Layout,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path());
    layout.create(&RealDisk, None).unwrap();
    Fixture { dir, layout }
}

fn unsupported(calls: &'static [Call]) -> FaultyDisk {
    FaultyDisk::new(move |call, _| {
        calls.contains(&call).then_some(Fault::Before(rustix::io::Errno::INVAL.raw_os_error()))
    })
}

#[test]
fn the_first_writer_wins_by_rename_by_link_and_without_either() {
    for disk in [unsupported(&[]), unsupported(&[Call::RenameNew]), unsupported(&[Call::RenameNew, Call::Link])] {
        let fixture = fixture();
        let path = fixture.dir.path().join("programs/ab/entry");
        let put = |bytes: &[u8], existing| publish(&disk, &fixture.layout, &path, [bytes], existing).unwrap();
        assert_eq!(put(b"first", Existing::Keeps), Published::New);
        assert_eq!(put(b"second", Existing::Keeps), Published::Lost);
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        assert_eq!(put(b"third", Existing::Yields), Published::New);
        assert_eq!(std::fs::read(&path).unwrap(), b"third");
        assert_eq!(files_below(&fixture.layout.dir("tmp")), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_link_whose_answer_was_lost_counts_as_made() {
    let fixture = fixture();
    let disk = FaultyDisk::new(|call, _| match call {
        Call::RenameNew => Some(Fault::Before(rustix::io::Errno::NOSYS.raw_os_error())),
        Call::Link => Some(Fault::After(rustix::io::Errno::IO.raw_os_error())),
        _ => None,
    });
    let path = fixture.dir.path().join("programs/ab/entry");
    assert_eq!(publish(&disk, &fixture.layout, &path, [&b"x"[..]], Existing::Keeps).unwrap(), Published::New);
    assert_eq!(std::fs::read(&path).unwrap(), b"x");
}

#[test]
fn temps_have_different_names_and_none_is_left() {
    let fixture = fixture();
    let names = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&names);
    let disk = FaultyDisk::new(move |call, path| {
        if call == Call::Create {
            seen.lock().unwrap().push(path.to_path_buf());
        }
        None
    });
    for index in 0..50 {
        let path = fixture.dir.path().join(format!("programs/ab/{index}"));
        publish(&disk, &fixture.layout, &path, [&b"x"[..]], Existing::Keeps).unwrap();
    }
    let mut names = names.lock().unwrap().clone();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 50);
    assert_eq!(files_below(&fixture.layout.dir("tmp")), Vec::<PathBuf>::new());
}

fn old_temp(fixture: &Fixture, name: &str, age: Duration) -> File {
    let file = File::create(fixture.layout.dir("tmp").join(name)).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
    file
}

#[test]
fn the_sweep_takes_orphans_and_leaves_writers_alone() {
    let fixture = fixture();
    let minutes = |count: u64| Duration::from_secs(60 * count);
    drop(old_temp(&fixture, "dead", minutes(2)));
    drop(old_temp(&fixture, "young", minutes(0)));
    let writer = old_temp(&fixture, "writing", minutes(2));
    writer.lock().unwrap();
    assert_eq!(sweep(&RealDisk, &fixture.layout, ORPHAN_AGE_DEFAULT).unwrap(), 1);
    let names: Vec<String> = RealDisk.list(&fixture.layout.dir("tmp")).unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(names, ["writing", "young"]);
}

#[test]
fn without_locks_only_day_old_temps_are_swept() {
    let fixture = fixture();
    drop(old_temp(&fixture, "hours", Duration::from_secs(5 * 3600)));
    drop(old_temp(&fixture, "days", Duration::from_secs(50 * 3600)));
    let disk = FaultyDisk::new(|call, _| {
        (call == Call::TryLock).then_some(Fault::Before(rustix::io::Errno::NOLCK.raw_os_error()))
    });
    assert_eq!(sweep(&disk, &fixture.layout, ORPHAN_AGE_DEFAULT).unwrap(), 1);
    assert!(fixture.layout.dir("tmp").join("hours").exists());
}

#[test]
fn the_quarantine_forgets_what_is_old() {
    let fixture = fixture();
    let dir = fixture.layout.dir("quarantine");
    std::fs::write(dir.join("1000-old.pcp.corrupt"), b"x").unwrap();
    let path = fixture.dir.path().join("bad.pcp");
    std::fs::write(&path, b"bad").unwrap();
    quarantine(&RealDisk, &fixture.layout, &path, &Miss::corrupt("magic", "a", "b")).unwrap();
    let names = files_below(&dir);
    assert_eq!(names.len(), 1);
    assert!(names[0].to_string_lossy().ends_with("-bad.pcp.corrupt"));
    assert!(!path.exists());
}
