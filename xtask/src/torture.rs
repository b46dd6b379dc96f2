//! `cargo xtask torture`: trying to break what must never break.

mod cache;
pub mod cache_child;
mod cache_crowd;
mod cache_fault;
mod cache_key;
mod cache_kill;
pub mod cache_model;
mod cache_racy;
mod cache_remote;
mod cache_s3;
mod engine;
mod session;

use anyhow::Result;
use clap::Subcommand;

/// What to torture.
#[derive(Subcommand)]
pub enum Torture {
    /// The Program cache, with kills, crowds, failing disks, colliding keys and racing stores.
    Cache(cache::TortureCacheArguments),
    /// Engines under load: every answer equals that of a request that is alone.
    Engine(engine::EngineArguments),
    /// Sessions under load: every answer equals the exact-shape run.
    Session(session::SessionArguments),
}

/// Tries.
pub fn run(what: &Torture) -> Result<()> {
    match what {
        Torture::Cache(arguments) => cache::run(arguments),
        Torture::Engine(arguments) => engine::run(arguments),
        Torture::Session(arguments) => session::run(arguments),
    }
}
