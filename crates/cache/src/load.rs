//! From bytes on disk to a Program that may run: every check of spec C6, in its order. What fails is classed; what is
//! damaged is moved away.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use precast_program::Program;

use crate::artifact::{self, Manifest, Wanted};
use crate::cache::ProgramCache;
use crate::disk;
use crate::layout::Layout;
use crate::miss::{Event, Miss};
use crate::publish;
use crate::shelf::Shelf;

impl ProgramCache {
    /// The Program from disk into memory.
    pub(crate) fn load(&self, wanted: &Wanted) -> Result<Arc<Program>, Miss> {
        let path = self.layout.program(&wanted.key);
        let bytes = self.read_fresh(&path)?;
        let (manifest, program) = match self.verify_artifact(&bytes, wanted) {
            Ok(verified) => verified,
            Err(miss) => {
                self.quarantine_program(&path, &wanted.key.to_string(), &miss);
                return Err(miss);
            }
        };
        self.load_constants(wanted, &manifest)?;
        self.touch(&wanted.key);
        Ok(self.memory.keep(wanted, Arc::new(program)))
    }

    /// The same on behalf of a request, which goes on without: a disk that does not answer must not look like an entry
    /// that is not there.
    pub(crate) fn load_told(&self, wanted: &Wanted) -> Result<Arc<Program>, Miss> {
        self.load(wanted).inspect_err(|miss| {
            if let Miss::Unavailable { call, errno, message } = miss.clone() {
                self.event(Event::Unavailable { doing: "loading", call, errno, message });
            }
        })
    }

    /// Checks everything about an artifact but its constants.
    pub(crate) fn verify_artifact(&self, bytes: &[u8], wanted: &Wanted) -> Result<(Manifest, Program), Miss> {
        artifact::verify(bytes, wanted, &self.options.provides, &self.options.sign)
    }

    /// Loads and verifies the constants that an artifact names.
    fn load_constants(&self, wanted: &Wanted, manifest: &Manifest) -> Result<(), Miss> {
        let mut shelf = Shelf::new(&self.weights, wanted.record.weights);
        for constant in &manifest.constants {
            let tensor = shelf.load(&constant.digest())?;
            let bytes = tensor.as_bytes().len() as u64;
            if bytes != constant.bytes {
                let section = format!("constant {}", constant.digest());
                return Err(Miss::corrupt(section, format!("{} bytes", constant.bytes), bytes));
            }
        }
        Ok(())
    }

    pub(crate) fn read_fresh(&self, path: &Path) -> Result<Bytes, Miss> {
        Ok(disk::open_fresh(|| self.options.disk.read(path))?)
    }

    /// Moves a damaged artifact away, if that is what the miss says and the mode allows it.
    pub(crate) fn quarantine_program(&self, path: &Path, key: &str, miss: &Miss) {
        if !self.mode.writes() || !matches!(miss, Miss::Corrupt { .. }) {
            return;
        }
        let name = format!("{key}{}", crate::layout::PROGRAM_ENDING);
        match publish::quarantine(&*self.options.disk, &self.layout, path, miss) {
            Ok(()) => self.event(Event::Quarantined { name, miss: miss.clone() }),
            Err(error) => self.event(Event::unavailable("quarantining", &error)),
        }
    }

    /// Whether the artifact is there, without looking at it.
    pub(crate) fn is_filed(&self, wanted: &Wanted) -> bool {
        self.options.disk.stat(&self.layout.root().join(Layout::program_name(&wanted.key))).is_ok()
    }
}
