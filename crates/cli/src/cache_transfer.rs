//! `cache push` and `pull`: between a folder and a store that machines share.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use precast::{CacheError, CacheMode, CacheOptions, Miss, ProgramCache, RemoteOptions, Signing, Transfer};
use serde_json::json;

use crate::Cx;
use crate::args::TransferArgs;
use crate::exit::{Exit, Failure};
use crate::output::Report;

/// Copies what the store does not have to it.
pub fn push(args: &TransferArgs, sign: Signing, cx: &Cx) -> Result<Report, Failure> {
    if !args.dir.is_dir() {
        return Err(Failure::usage(format!("there is no folder '{}'", args.dir.display())));
    }
    if let Some(folder) = local_folder(&args.url) {
        let made = std::fs::create_dir_all(&folder);
        made.map_err(|error| Failure::usage(format!("cannot make '{}': {error}", folder.display())))?;
    }
    let cache = open(args, CacheMode::ReadOnly, sign)?;
    let moved = cx.console.during("pushing", None, || cache.push());
    report("pushed", args, moved.map_err(unreachable)?)
}

/// Copies what the folder does not have from the store.
pub fn pull(args: &TransferArgs, sign: Signing, cx: &Cx) -> Result<Report, Failure> {
    if let Some(folder) = local_folder(&args.url).filter(|folder| !folder.is_dir()) {
        return Err(Failure::usage(format!("there is no folder '{}'", folder.display())));
    }
    let cache = open(args, CacheMode::ReadWrite, sign)?;
    let moved = cx.console.during("pulling", None, || cache.pull());
    report("pulled", args, moved.map_err(unreachable)?)
}

fn open(args: &TransferArgs, mode: CacheMode, sign: Signing) -> Result<ProgramCache, Failure> {
    let url = match local_folder(&args.url) {
        Some(folder) => {
            let absolute = std::path::absolute(&folder);
            let absolute = absolute.map_err(|error| Failure::usage(format!("'{}': {error}", folder.display())))?;
            format!("file://{}", absolute.display())
        }
        None => args.url.clone(),
    };
    let remote = RemoteOptions { options: args.options.clone(), ..RemoteOptions::new(url) };
    let opened = ProgramCache::open(CacheOptions { mode, sign, remote: Some(remote), ..CacheOptions::new(&args.dir) });
    opened.map_err(|error| match error {
        CacheError::Remote { .. } => Failure::usage(error.to_string()),
        other => precast::Error::from(other).into(),
    })
}

/// The folder that an address without a network names.
fn local_folder(url: &str) -> Option<PathBuf> {
    match url.strip_prefix("file://") {
        Some(path) => Some(PathBuf::from(path)),
        None => (!url.contains("://")).then(|| Path::new(url).to_path_buf()),
    }
}

fn unreachable(error: CacheError) -> Failure {
    match error {
        CacheError::Remote { .. } => Failure::new(Exit::Unreachable, error.to_string()),
        other => precast::Error::from(other).into(),
    }
}

fn report(verb: &str, args: &TransferArgs, moved: Transfer) -> Result<Report, Failure> {
    let Transfer { programs, weights, bytes, skipped } = &moved;
    let mut text = format!("{verb} {programs} Programs and {weights} constants, {bytes} B\n");
    for (name, miss) in skipped {
        let _ = writeln!(text, "passed over {name}: {miss}");
    }
    let json = json!({
        "store": args.url,
        "programs": programs,
        "constants": weights,
        "bytes": bytes,
        "skipped": skipped.iter().map(|(name, miss)| {
            json!({ "name": name, "class": miss.class(), "reason": miss.to_string() })
        }).collect::<Vec<_>>(),
    });
    let count = |is: fn(&Miss) -> bool| skipped.iter().filter(|(_, miss)| is(miss)).count();
    let damaged = count(|miss| matches!(miss, Miss::Corrupt { .. }));
    let unreached = count(|miss| matches!(miss, Miss::Unavailable { .. }));
    let (exit, error) = match (damaged, unreached) {
        (0, 0) => (Exit::Done, None),
        (0, _) => (Exit::Unreachable, Some(format!("{unreached} Programs could not be moved"))),
        _ => (Exit::Integrity, Some(format!("{damaged} Programs are damaged"))),
    };
    Ok(Report { text, json, exit, error })
}
