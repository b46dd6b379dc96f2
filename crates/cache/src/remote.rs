//! The remote tier's client: blocking calls on an object store, each with a time limit. The async runtime that the
//! store needs is hidden here, on one thread of its own, so callers may be on any thread, an async one included.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, UpdateVersion};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use url::Url;

use crate::miss::{CacheError, Miss};
use crate::options::RemoteOptions;

/// Uploads that may wait at once; more are dropped, and the next compile elsewhere makes up for it.
const UPLOADS_MAX: usize = 64;
/// How long a store that failed is left alone, so that a dead store costs one time limit and not one a Program.
const DOWN_PAUSE: Duration = Duration::from_secs(30);
/// Slowest link that is waited for: added to the limit of large objects.
const BYTES_A_SECOND_LEAST: u64 = 16 << 20;

type Job = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A remote store. Clones share it.
#[derive(Clone)]
pub struct Remote(Arc<Inner>);

struct Inner {
    url: String,
    store: Arc<dyn ObjectStore>,
    base: ObjectPath,
    jobs: UnboundedSender<Job>,
    limit: Duration,
    is_uploading: bool,
    down_until: Mutex<Option<Instant>>,
    pending: Mutex<usize>,
    is_idle: Condvar,
}

/// Why a store did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RemoteError {
    /// There is no such object.
    NotFound,
    /// There already is one, or it has changed.
    Exists,
    /// The object is larger than it can be.
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest it can be.
        bytes_max: u64,
    },
    /// The store has no such operation.
    Unsupported,
    /// Anything else, the time limit included.
    Failed(String),
}

impl RemoteError {
    fn of(error: Error) -> RemoteError {
        match error {
            Error::NotFound { .. } => RemoteError::NotFound,
            Error::AlreadyExists { .. } | Error::Precondition { .. } => RemoteError::Exists,
            Error::NotSupported { .. } | Error::NotImplemented { .. } => RemoteError::Unsupported,
            other => RemoteError::Failed(other.to_string()),
        }
    }

    /// As the miss of an entry.
    pub(crate) fn miss(self, call: &str) -> Miss {
        let unavailable = |message: String| {
            let call = format!("remote {call}");
            Miss::Unavailable { message: format!("{call}: {message}"), call, errno: None }
        };
        match self {
            RemoteError::NotFound => Miss::absent(),
            RemoteError::Exists => unavailable("the object has changed".to_string()),
            RemoteError::TooLarge { bytes, bytes_max } => {
                Miss::corrupt("remote object", format!("at most {bytes_max} bytes"), format!("{bytes} bytes"))
            }
            RemoteError::Unsupported => unavailable("the store has no such operation".to_string()),
            RemoteError::Failed(message) => unavailable(message),
        }
    }
}

/// Answer of a store.
pub(crate) type Reply<T> = Result<T, RemoteError>;

impl Remote {
    /// Opens a store, or the one that is given in its place. Does not talk to it yet.
    pub(crate) fn open(options: &RemoteOptions, given: Option<Arc<dyn ObjectStore>>) -> Result<Remote, CacheError> {
        let refused = |reason: String| CacheError::Remote { url: options.url.clone(), reason };
        let (store, base) = match given {
            Some(store) => (store, ObjectPath::default()),
            None => locate_store(options).map_err(refused)?,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| refused(format!("no runtime: {error}")))?;
        let (jobs, mut incoming) = unbounded_channel::<Job>();
        let run = move || {
            runtime.block_on(async move {
                while let Some(job) = incoming.recv().await {
                    tokio::spawn(job);
                }
            });
        };
        let thread = std::thread::Builder::new().name("cache remote".to_string()).spawn(run);
        thread.map_err(|error| refused(format!("no thread: {error}")))?;
        Ok(Remote(Arc::new(Inner {
            url: options.url.clone(),
            store,
            base,
            jobs,
            limit: options.limit,
            is_uploading: options.upload,
            down_until: Mutex::default(),
            pending: Mutex::default(),
            is_idle: Condvar::new(),
        })))
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Whether Programs compiled here are uploaded.
    pub(crate) fn is_uploading(&self) -> bool {
        self.0.is_uploading
    }

    /// A whole object of at most so many bytes, and its version.
    pub(crate) fn get(&self, name: &str, bytes_max: u64) -> Reply<(Bytes, UpdateVersion)> {
        self.call(self.0.limit, self.fetch(name, bytes_max))
    }

    /// A whole object of about this size, with the time that takes.
    pub(crate) fn get_large(&self, name: &str, bytes_max: u64) -> Reply<(Bytes, UpdateVersion)> {
        self.call(self.limit_of(bytes_max), self.fetch(name, bytes_max))
    }

    /// A whole object, as something to await.
    pub(crate) fn fetch(
        &self,
        name: &str,
        bytes_max: u64,
    ) -> impl Future<Output = Reply<(Bytes, UpdateVersion)>> + Send + use<> {
        let (store, path) = self.locate(name);
        async move {
            let found = store.get(&path).await.map_err(RemoteError::of)?;
            if found.meta.size > bytes_max {
                return Err(RemoteError::TooLarge { bytes: found.meta.size, bytes_max });
            }
            let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
            Ok((found.bytes().await.map_err(RemoteError::of)?, version))
        }
    }

    /// Stores an object that must not exist.
    pub(crate) fn put_new(&self, name: &str, parts: Vec<Bytes>) -> Reply<UpdateVersion> {
        self.call(self.limit_of(size(&parts)), self.put(name, parts, PutMode::Create))
    }

    /// Replaces an object that must still have this version.
    pub(crate) fn replace(&self, name: &str, bytes: Bytes, version: UpdateVersion) -> Reply<UpdateVersion> {
        self.call(self.0.limit, self.put(name, vec![bytes], PutMode::Update(version)))
    }

    /// Removes an object.
    pub(crate) fn delete(&self, name: &str) -> Reply<()> {
        self.call(self.0.limit, self.remove(name))
    }

    /// Names of the objects below a directory of directories.
    pub(crate) fn list(&self, dir: &str) -> Reply<Vec<String>> {
        let (store, path) = self.locate(dir);
        let base = self.0.base.clone();
        self.call(self.0.limit, async move {
            let mut names = Vec::new();
            let shards = store.list_with_delimiter(Some(&path)).await.map_err(RemoteError::of)?;
            for shard in shards.common_prefixes {
                let listed = store.list_with_delimiter(Some(&shard)).await.map_err(RemoteError::of)?;
                let below = |location: &ObjectPath| -> Option<String> {
                    Some(
                        location
                            .prefix_match(&base)?
                            .map(|part| part.as_ref().to_string())
                            .collect::<Vec<_>>()
                            .join("/"),
                    )
                };
                names.extend(listed.objects.iter().filter_map(|object| below(&object.location)));
            }
            names.sort();
            Ok(names)
        })
    }

    /// Storing an object, as something to await.
    pub(crate) fn put(
        &self,
        name: &str,
        parts: Vec<Bytes>,
        mode: PutMode,
    ) -> impl Future<Output = Reply<UpdateVersion>> + Send + use<> {
        let (store, path) = self.locate(name);
        async move {
            let payload: PutPayload = parts.into_iter().collect();
            let stored = store.put_opts(&path, payload, mode.into()).await.map_err(RemoteError::of)?;
            Ok(UpdateVersion { e_tag: stored.e_tag, version: stored.version })
        }
    }

    /// Removing an object, as something to await.
    pub(crate) fn remove(&self, name: &str) -> impl Future<Output = Reply<()>> + Send + use<> {
        let (store, path) = self.locate(name);
        async move { store.delete(&path).await.map_err(RemoteError::of) }
    }

    /// Runs something on the store's thread without waiting for it; false where too much waits already.
    pub(crate) fn spawn(&self, job: impl Future<Output = ()> + Send + 'static) -> bool {
        let mut pending = lock(&self.0.pending);
        if *pending >= UPLOADS_MAX {
            return false;
        }
        *pending += 1;
        // Dropped with the job, so a job that is never run is not waited for.
        let done = Done(self.clone());
        let job = async move {
            let _done = done;
            job.await;
        };
        self.0.jobs.send(Box::pin(job)).is_ok()
    }

    /// Waits until nothing that was spawned is left; false if that takes longer.
    pub(crate) fn flush(&self, timeout: Duration) -> bool {
        let pending = lock(&self.0.pending);
        let waited = self.0.is_idle.wait_timeout_while(pending, timeout, |pending| *pending > 0);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Time limit for an object of this size.
    pub(crate) fn limit_of(&self, bytes: u64) -> Duration {
        self.0.limit + Duration::from_secs(bytes / BYTES_A_SECOND_LEAST)
    }

    fn locate(&self, name: &str) -> (Arc<dyn ObjectStore>, ObjectPath) {
        let path = name.split('/').fold(self.0.base.clone(), |path, part| path.join(part));
        (Arc::clone(&self.0.store), path)
    }

    /// Waits for an answer, at most for the limit.
    fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        future: impl Future<Output = Reply<T>> + Send + 'static,
    ) -> Reply<T> {
        if lock(&self.0.down_until).is_some_and(|until| Instant::now() < until) {
            return Err(RemoteError::Failed("left alone after a failure".to_string()));
        }
        let (sender, receiver) = sync_channel(1);
        let timed_out = move || RemoteError::Failed(format!("no answer within {limit:?}"));
        let job = async move {
            let answer = tokio::time::timeout(limit, future).await;
            // A caller that is gone needs no answer.
            let _ = sender.send(answer.unwrap_or_else(|_| Err(timed_out())));
        };
        let gone = || RemoteError::Failed("the store's thread ended".to_string());
        self.0.jobs.send(Box::pin(job)).map_err(|_| gone())?;
        // A file system that hangs may stall the store's thread itself; the caller still gets away.
        let answer = match receiver.recv_timeout(limit + Duration::from_secs(1)) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(timed_out()),
            Err(RecvTimeoutError::Disconnected) => Err(gone()),
        };
        if matches!(answer, Err(RemoteError::Failed(_))) {
            *lock(&self.0.down_until) = Some(Instant::now() + DOWN_PAUSE);
        }
        answer
    }
}

/// The store that an address names, and the path in it.
fn locate_store(options: &RemoteOptions) -> Result<(Arc<dyn ObjectStore>, ObjectPath), String> {
    let url = Url::parse(&options.url).map_err(|error| error.to_string())?;
    if cfg!(not(feature = "cloud")) && url.scheme() != "file" {
        let scheme = url.scheme();
        return Err(format!("this build knows file:// only; for '{scheme}' build it with `--features cloud`"));
    }
    let pairs = options.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let (store, base) = object_store::parse_url_opts(&url, pairs).map_err(|error| error.to_string())?;
    Ok((Arc::from(store), base))
}

/// Counts a job as done when dropped.
struct Done(Remote);

impl Drop for Done {
    fn drop(&mut self) {
        *lock(&self.0.0.pending) -= 1;
        self.0.0.is_idle.notify_all();
    }
}

fn size(parts: &[Bytes]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
