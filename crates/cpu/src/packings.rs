//! Which packed constants were made already. Buckets of a model pack the same weights in the same way; only the first that
//! is compiled does so, and the others find the result in the store.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use precast_program::ArtifactStore;
use precast_tensor::{Digest, Tensor};

use crate::step::PackedForm;

/// Digests of packed constants, by the names of their forms.
#[derive(Default)]
pub struct Packings(Mutex<BTreeMap<Digest, Digest>>);

impl Packings {
    /// The packed constant: from the store where one of this name was made and is still there, else made now.
    pub fn tensor(&self, form: PackedForm, store: &dyn ArtifactStore) -> Result<Tensor, String> {
        let known = self.lock().get(&form.name).copied();
        if let Some(tensor) = known.and_then(|digest| store.get(&digest).ok()) {
            return Ok(tensor);
        }
        let tensor = (form.make)()?;
        self.lock().insert(form.name, tensor.digest());
        Ok(tensor)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Digest, Digest>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use precast_program::MemoryStore;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn a_form_is_made_once_and_again_where_the_store_has_lost_it() {
        let (packings, made) = (Packings::default(), Rc::new(Cell::new(0)));
        let ask = |name: &str, store: &MemoryStore| {
            let made = made.clone();
            let make = move || {
                made.set(made.get() + 1);
                Tensor::from_vec([2], vec![1.0_f32, 2.0]).map_err(|error| error.to_string())
            };
            let form = PackedForm { name: Digest::of_bytes(name.as_bytes()), make: Box::new(make) };
            let tensor = packings.tensor(form, store).unwrap();
            store.put(&tensor).unwrap();
            assert_eq!(tensor, Tensor::from_vec([2], vec![1.0_f32, 2.0]).unwrap());
        };
        let store = MemoryStore::default();
        ask("gemm", &store);
        ask("gemm", &store);
        assert_eq!(made.get(), 1);
        ask("other", &store);
        assert_eq!(made.get(), 2);
        ask("gemm", &MemoryStore::default());
        assert_eq!(made.get(), 3);
    }
}
