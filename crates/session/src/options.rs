//! What a caller decides about a Session.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use precast_program::PadContent;

use crate::buckets::BucketPolicy;
use crate::startup::Progress;

/// What is decided about one dim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimOptions {
    /// Which extents have Programs.
    pub buckets: BucketPolicy,
}

/// What may answer a request whose Program is not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnMiss {
    /// It waits for the compile.
    Wait,
    /// Larger Buckets that are loaded answer.
    PadUp,
    /// Reference evaluation answers: right and slow.
    Reference,
    /// It is refused.
    Reject,
}

/// What may answer, tried in order; a chain that ends refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnMissChain(pub Vec<OnMiss>);

impl OnMissChain {
    /// Whether one of the links is this one.
    pub fn contains(&self, link: OnMiss) -> bool {
        self.0.contains(&link)
    }
}

impl From<OnMiss> for OnMissChain {
    fn from(link: OnMiss) -> OnMissChain {
        OnMissChain(vec![link])
    }
}

impl FromStr for OnMissChain {
    type Err = String;

    /// `wait`, or several links such as `pad-up,wait`; `pad-to-larger` is another word for `pad-up`.
    fn from_str(text: &str) -> Result<OnMissChain, String> {
        let mut links = Vec::new();
        for word in text.split(',') {
            let link = match word.trim() {
                "wait" => OnMiss::Wait,
                "pad-up" | "pad-to-larger" => OnMiss::PadUp,
                "reference" => OnMiss::Reference,
                "reject" => OnMiss::Reject,
                _ => {
                    let expected = "wait, pad-up, reference or reject was expected";
                    return Err(format!("'{word}' is not an on-miss policy; {expected}"));
                }
            };
            if links.contains(&link) {
                return Err(format!("'{}' is given twice", word.trim()));
            }
            if let Some(last @ (OnMiss::Wait | OnMiss::Reference | OnMiss::Reject)) = links.last() {
                return Err(format!("nothing can follow {last:?}, which always answers: '{text}'"));
            }
            links.push(link);
        }
        Ok(OnMissChain(links))
    }
}

/// Which Buckets are there before `open` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Startup {
    /// All, and what each costs is measured.
    All,
    /// The largest, which by padding can serve every request. The others follow in the background and are taken into use as
    /// they come, then all are measured; `Session::wait_until_ready` waits for that. Meanwhile requests pad up where
    /// `on_miss` says so first.
    Largest,
    /// None: each is loaded or compiled when it is asked for.
    Lazy,
}

/// What requests do when every context is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextWait {
    /// Wait this long.
    Block(Duration),
    /// Be refused.
    Reject,
}

/// What is called with each progress of opening.
pub type Tell = dyn Fn(&Progress) + Send + Sync;

/// Who is told how opening goes on.
#[derive(Clone, Default)]
pub struct Observer(pub Option<Arc<Tell>>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Observer(..)" } else { "Observer" })
    }
}

/// How a Session is opened.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// What is decided about each dim, by symbol. Dims that are not named are exact.
    pub dims: BTreeMap<String, DimOptions>,
    /// The dim along which requests are split; the first that may be, unless set.
    pub split_dim: Option<String>,
    /// What may answer a request whose Program is not loaded.
    pub on_miss: OnMissChain,
    /// How long a request waits for a compile.
    pub on_miss_timeout: Option<Duration>,
    /// Compile what was missed in the background where something else answered.
    pub background: bool,
    /// Which Buckets are there before `open` returns.
    pub startup: Startup,
    /// Programs that are compiled at once; more may be loaded or published meanwhile. While requests are served already
    /// (`Startup::Largest`), one core is left to them.
    pub jobs: usize,
    /// Measure what each Bucket costs when the Session is opened, where the cache does not know it yet.
    pub measures: bool,
    /// Buckets that a model may have; more is an error, never a silent cut.
    pub buckets_max: usize,
    /// Programs of exact sizes that are kept loaded beside the Buckets.
    pub exact_programs_max: usize,
    /// Runs that may be in flight at once.
    pub contexts: usize,
    /// What requests do when every context is in use.
    pub contexts_wait: ContextWait,
    /// Requests that may wait for a context; one more is refused.
    pub waiting_max: usize,
    /// Bytes that weights and contexts may take; contexts are given up first.
    pub memory_limit: Option<u64>,
    /// What pad rows hold.
    pub pad_content: PadContent,
    /// Code-affecting options of the target, by name: part of every key.
    pub target_options: BTreeMap<String, String>,
    /// What measured costs hold for beside the Program: the kind of machine. Not part of any key.
    pub device_label: String,
    /// Who is told how opening goes on.
    pub progress: Observer,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        SessionOptions {
            dims: BTreeMap::new(),
            split_dim: None,
            on_miss: OnMissChain(vec![OnMiss::PadUp, OnMiss::Wait]),
            on_miss_timeout: None,
            background: true,
            startup: Startup::Largest,
            jobs: cores.min(8),
            measures: true,
            buckets_max: 64,
            exact_programs_max: 64,
            contexts: cores.max(2),
            contexts_wait: ContextWait::Block(Duration::from_secs(60)),
            waiting_max: 4096,
            memory_limit: None,
            pad_content: PadContent::LastRow,
            target_options: BTreeMap::new(),
            device_label: String::new(),
            progress: Observer::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_read_as_they_are_written() {
        assert_eq!("wait".parse(), Ok(OnMissChain(vec![OnMiss::Wait])));
        assert_eq!("pad-up,reject".parse(), Ok(OnMissChain(vec![OnMiss::PadUp, OnMiss::Reject])));
        for bad in ["", "later", "wait,pad-up", "pad-up,pad-up", "reference,wait"] {
            assert!(bad.parse::<OnMissChain>().is_err(), "{bad}");
        }
    }
}
