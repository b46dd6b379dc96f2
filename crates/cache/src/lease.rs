//! Leases in the remote store, so that of several machines one compiles. Best effort: clocks differ and stores race, so
//! two machines may compile; what they load is verified either way (spec C24).

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::{PutMode, UpdateVersion};
use precast_program::Program;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::artifact::Wanted;
use crate::cache::ProgramCache;
use crate::index::now_s;
use crate::options::Mode;
use crate::remote::{Remote, RemoteError};

/// A lease that is not renewed ends after this many seconds.
const LEASE_S: u64 = 60;
const RENEW_EVERY: Duration = Duration::from_secs(20);
const POLL_FIRST: Duration = Duration::from_millis(100);
const POLL_LONGEST: Duration = Duration::from_secs(2);
/// A lease is a few words; more is not one.
const LEASE_BYTES_MAX: u64 = 4096;

/// The right to compile for all machines, renewed until dropped and then given back.
pub(crate) struct Lease {
    remote: Remote,
    name: String,
    /// Dropping it ends the renewals.
    renewals: Option<oneshot::Sender<()>>,
}

/// What a lease object says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Terms {
    owner: String,
    expires_s: u64,
}

impl Terms {
    fn new(owner: &str) -> Terms {
        Terms { owner: owner.to_string(), expires_s: now_s() + LEASE_S }
    }

    fn bytes(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }

    /// What cannot be read protects nobody.
    fn has_ended(bytes: &[u8]) -> bool {
        serde_json::from_slice(bytes).map_or(true, |terms: Terms| terms.expires_s < now_s())
    }
}

impl Lease {
    /// Starts renewing a lease that was just won.
    fn start(remote: &Remote, name: &str, owner: String, version: UpdateVersion) -> Lease {
        let (renewals, mut ended) = oneshot::channel::<()>();
        let (client, object) = (remote.clone(), name.to_string());
        let renew = async move {
            let mut version = version;
            while tokio::time::timeout(RENEW_EVERY, &mut ended).await.is_err() {
                let put = client.put(&object, vec![Terms::new(&owner).bytes()], PutMode::Update(version.clone()));
                match put.await {
                    Ok(renewed) => version = renewed,
                    // Lost, or a store without conditional puts: others will see it end.
                    Err(_) => return,
                }
            }
        };
        remote.spawn(renew);
        Lease { remote: remote.clone(), name: name.to_string(), renewals: Some(renewals) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewals = None;
        let release = self.remote.remove(&self.name);
        self.remote.spawn(async move {
            // A lease that cannot be given back ends by itself.
            let _ = release.await;
        });
    }
}

/// One attempt: the version of the lease if it was won.
fn try_lease(remote: &Remote, name: &str, owner: &str) -> Result<Option<UpdateVersion>, RemoteError> {
    match remote.put_new(name, vec![Terms::new(owner).bytes()]) {
        Ok(version) => return Ok(Some(version)),
        Err(RemoteError::Exists) => {}
        Err(error) => return Err(error),
    }
    let (bytes, version) = match remote.get(name, LEASE_BYTES_MAX) {
        Ok(found) => found,
        // Given back since; the next attempt may win.
        Err(RemoteError::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    if !Terms::has_ended(&bytes) {
        return Ok(None);
    }
    match remote.replace(name, Terms::new(owner).bytes(), version) {
        Ok(version) => Ok(Some(version)),
        Err(RemoteError::Exists) => Ok(None),
        // Without conditional puts two machines may both remove and win: two compiles at most.
        Err(RemoteError::Unsupported) => {
            let _ = remote.delete(name);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl ProgramCache {
    /// The lease to compile a Program, or the Program that another machine compiled meanwhile. Without a store, or where
    /// it does not answer, there is no lease and nothing is lost.
    pub(crate) fn lease(&self, wanted: &Wanted) -> Result<Option<Lease>, Arc<Program>> {
        // A refresh compiles whatever others have or do.
        let may_share = self.mode == Mode::ReadWrite;
        let Some(remote) = self.remote.as_ref().filter(|remote| remote.is_uploading() && may_share) else {
            return Ok(None);
        };
        let name = format!("leases/{}", wanted.key);
        let mut nonce = [0; 16];
        if getrandom::fill(&mut nonce).is_err() {
            return Ok(None);
        }
        let owner: String = nonce.iter().map(|byte| format!("{byte:02x}")).collect();
        let deadline = Instant::now() + self.lock_timeout(wanted);
        let mut pause = POLL_FIRST;
        while Instant::now() < deadline {
            let Ok(attempt) = try_lease(remote, &name, &owner) else { return Ok(None) };
            if let Some(version) = attempt {
                let lease = Lease::start(remote, &name, owner, version);
                // Whoever had the lease before may have stored the Program.
                return self.fetch_quietly(wanted).map_or(Ok(Some(lease)), Err);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(POLL_LONGEST);
            if let Some(program) = self.fetch_quietly(wanted) {
                return Err(program);
            }
        }
        Ok(None)
    }
}
