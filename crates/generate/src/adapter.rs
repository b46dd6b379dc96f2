//! Adapters: a decoder with other values for some of its parameters, such as the small matrices of LoRA. An adapter is a
//! decoder of its own for Sessions and Programs, whose other constants are those of the model and lie in memory once. Rows
//! of one adapter are of no use to those of another, so its digest is part of the names of their pages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use precast_tensor::{Digest, Hasher, Tensor};

use crate::text_model::{TextModel, TextModelParts};

/// Values of parameters, by name.
pub type Parameters = BTreeMap<String, Tensor>;

/// Opens a decoder with these values for some of its parameters, on its device; says why where that cannot be.
pub type OpenAdapted = Arc<dyn Fn(&Parameters) -> Result<TextModelParts, String> + Send + Sync>;

/// Why an adapter was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdapterError {
    /// A name that another adapter has.
    #[error("there is an adapter '{0}' already; unload it first")]
    Taken(String),
    /// A name that no adapter has.
    #[error("there is no adapter '{name}'; {}", listed(.loaded))]
    Unknown {
        /// The name.
        name: String,
        /// Names that there are.
        loaded: Vec<String>,
    },
    /// An adapter that generators or requests use.
    #[error("adapter '{0}' is in use: a generator or a request has it")]
    InUse(String),
    /// Values that the decoder cannot take.
    #[error("adapter '{name}': {reason}")]
    Misfit {
        /// The adapter.
        name: String,
        /// What was found and what was expected.
        reason: String,
    },
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "none is loaded".to_string(),
        names => format!("loaded are {}", names.join(", ")),
    }
}

/// Values for parameters of a decoder, under a name. Cheap to clone; whoever holds one uses it.
#[derive(Clone)]
pub struct Adapter(Arc<AdapterParts>);

struct AdapterParts {
    name: String,
    digest: Digest,
    parameters: Parameters,
    /// The decoder that it was first opened on.
    model: Weak<TextModelParts>,
    opened: Mutex<Opened>,
    gone: Arc<Gone>,
}

/// The decoder with these values, on the device of one model. A model that is opened anew has another.
struct Opened {
    model: Weak<TextModelParts>,
    parts: Arc<TextModelParts>,
}

/// Tells who waits for it that an adapter has no more users.
#[derive(Default)]
struct Gone {
    lock: Mutex<()>,
    told: Condvar,
}

impl Drop for AdapterParts {
    fn drop(&mut self) {
        let _held = self.gone.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.gone.told.notify_all();
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Adapter({} {})", self.0.name, self.0.digest)
    }
}

impl Adapter {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Digest of all names and values; adapters of equal ones compute the same, whatever they are called.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    /// Values by the names of parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.0.parameters
    }

    /// Bytes of its values: all that it takes of memory beside the model, but for Programs.
    pub fn bytes(&self) -> usize {
        self.0.parameters.values().map(|tensor| tensor.as_bytes().len()).sum()
    }

    /// Whether it was made for this model.
    pub(crate) fn is_of(&self, model: &Weak<TextModelParts>) -> bool {
        Weak::ptr_eq(&self.0.model, model)
    }

    fn open(model: &TextModel, name: &str, parameters: Parameters) -> Result<Adapter, AdapterError> {
        let parts = open_parts(model, &parameters);
        let parts = parts.map_err(|reason| AdapterError::Misfit { name: name.to_string(), reason })?;
        let base = Arc::downgrade(&model.shared);
        Ok(Adapter(Arc::new(AdapterParts {
            name: name.to_string(),
            digest: digest_of(&parameters),
            parameters,
            model: base.clone(),
            opened: Mutex::new(Opened { model: base, parts }),
            gone: Arc::default(),
        })))
    }

    /// The decoder with its values on the device of a model: made anew where the model was.
    fn parts_on(&self, model: &TextModel) -> Result<Arc<TextModelParts>, AdapterError> {
        let mut opened = self.0.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let base = Arc::downgrade(&model.shared);
        if !Weak::ptr_eq(&opened.model, &base) {
            let misfit = |reason| AdapterError::Misfit { name: self.name().to_string(), reason };
            let parts = open_parts(model, &self.0.parameters).map_err(misfit)?;
            *opened = Opened { model: base, parts };
        }
        Ok(opened.parts.clone())
    }
}

fn digest_of(parameters: &Parameters) -> Digest {
    let mut hasher = Hasher::default();
    for (name, tensor) in parameters {
        // The length keeps names and digests apart.
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(&tensor.digest().0);
    }
    hasher.finish()
}

/// Opens a decoder with other values, which must cache, score and be cut as the model's own does.
fn open_parts(model: &TextModel, parameters: &Parameters) -> Result<Arc<TextModelParts>, String> {
    let open = model.open_adapted.as_ref().ok_or("nothing here can open the model with other parameters")?;
    let (own, parts) = (&model.shared, open(parameters)?);
    let claims = [
        (parts.layers == own.layers, "cache other keys and values"),
        (parts.vocabulary == own.vocabulary, "have another vocabulary"),
        (parts.ladders == own.ladders, "need Programs of other sizes"),
    ];
    match claims.iter().find(|(holds, _)| !holds) {
        Some((_, what)) => Err(format!("with these values the decoder would {what} than the model does")),
        None => Ok(Arc::new(parts)),
    }
}

impl TextModel {
    /// The same decoder, which can be opened with other values for some of its parameters.
    pub fn with_open_adapted(mut self, open: OpenAdapted) -> TextModel {
        self.open_adapted = Some(open);
        self
    }

    /// The same decoder with the values of an adapter, or with its own. Everything that runs on a model runs on this one.
    pub fn with_adapter(&self, adapter: Option<&Adapter>) -> Result<TextModel, AdapterError> {
        let mut model = self.clone();
        model.adapted = match adapter {
            Some(adapter) => Some((adapter.clone(), adapter.parts_on(self)?)),
            None => None,
        };
        Ok(model)
    }

    /// The adapter whose values it has.
    pub fn adapter(&self) -> Option<&Adapter> {
        self.adapted.as_ref().map(|(adapter, _)| adapter)
    }

    /// What it is made of now.
    pub(crate) fn parts(&self) -> &TextModelParts {
        self.adapted.as_ref().map_or(&self.shared, |(_, parts)| parts)
    }

    /// What tells models apart: one that is opened anew is another.
    pub(crate) fn identity(&self) -> Weak<TextModelParts> {
        Arc::downgrade(&self.shared)
    }
}

/// The adapters of a model, by name. Shared by threads.
pub struct Adapters {
    model: TextModel,
    loaded: Mutex<BTreeMap<String, Adapter>>,
}

impl Adapters {
    /// No adapters of a model.
    pub fn new(model: &TextModel) -> Adapters {
        let mut model = model.clone();
        model.adapted = None;
        Adapters { model, loaded: Mutex::default() }
    }

    /// The model that they are for.
    pub fn model(&self) -> &TextModel {
        &self.model
    }

    /// Adds an adapter of these values. Names, types and shapes that the decoder cannot take are refused.
    pub fn add(&self, name: &str, parameters: Parameters) -> Result<Adapter, AdapterError> {
        let refuse_taken = |loaded: &BTreeMap<String, Adapter>| match loaded.contains_key(name) {
            true => Err(AdapterError::Taken(name.to_string())),
            false => Ok(()),
        };
        if name.is_empty() {
            let reason = "an adapter needs a name".to_string();
            return Err(AdapterError::Misfit { name: String::new(), reason });
        }
        refuse_taken(&self.lock())?;
        // Others may use theirs while this one is opened.
        let adapter = Adapter::open(&self.model, name, parameters)?;
        let mut loaded = self.lock();
        refuse_taken(&loaded)?;
        loaded.insert(name.to_string(), adapter.clone());
        Ok(adapter)
    }

    /// The adapter of this name.
    pub fn get(&self, name: &str) -> Result<Adapter, AdapterError> {
        let loaded = self.lock();
        loaded.get(name).cloned().ok_or_else(|| unknown(name, &loaded))
    }

    /// Names in order.
    pub fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// Forgets an adapter, and waits until nobody uses it any more. Who asks for its name from now on finds none, or another
    /// one that was loaded since. A generator uses its adapter until it is dropped or given another, a request until its last
    /// answer has ended and its handle is dropped where it keeps turns.
    pub fn unload(&self, name: &str) -> Result<(), AdapterError> {
        let mut loaded = self.lock();
        let adapter = loaded.remove(name).ok_or_else(|| unknown(name, &loaded))?;
        drop(loaded);
        let (parts, gone) = (Arc::downgrade(&adapter.0), adapter.0.gone.clone());
        drop(adapter);
        let mut held = gone.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while parts.strong_count() > 0 {
            held = gone.told.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// Forgets an adapter that nobody uses; refuses where somebody does, and nothing has changed then.
    pub fn try_unload(&self, name: &str) -> Result<(), AdapterError> {
        let mut loaded = self.lock();
        let adapter = loaded.get(name).ok_or_else(|| unknown(name, &loaded))?;
        if Arc::strong_count(&adapter.0) > 1 {
            return Err(AdapterError::InUse(name.to_string()));
        }
        loaded.remove(name);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Adapter>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unknown(name: &str, loaded: &BTreeMap<String, Adapter>) -> AdapterError {
    AdapterError::Unknown { name: name.to_string(), loaded: loaded.keys().cloned().collect() }
}
