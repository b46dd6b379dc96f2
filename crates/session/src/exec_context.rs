//! An ExecContext: all that one run in flight may change. A device context, padded copies, and the Bindings of recent
//! requests. A run owns one, so runs share nothing; a bounded number of them makes memory known ahead.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use precast_program::{Device, DeviceContext, DeviceRun, IoPath, LaunchPath, PadContent, RunError};

use crate::binding::{Binding, InputPlace, OutputPlace};
use crate::error::SessionError;
use crate::options::ContextWait;
use crate::output_buffer::OutputBuffer;
use crate::request::Argument;

/// What a request of no Buckets took.
const FASTEST: DeviceRun = DeviceRun { launch: LaunchPath::Replayed, inputs: IoPath::Host, outputs: IoPath::Host };
/// Bindings that a context keeps, newest first.
const BINDINGS_KEPT: usize = 8;

/// The state of one run at a time.
pub(crate) struct ExecContext {
    device: Box<dyn DeviceContext>,
    bindings: Vec<Arc<Binding>>,
    staging_in: OutputBuffer,
    staging_out: OutputBuffer,
    /// Empty between runs; kept for its memory.
    input_slices: Vec<&'static [u8]>,
    /// Empty between runs; kept for its memory.
    output_slices: Vec<&'static mut [u8]>,
}

impl ExecContext {
    pub(crate) fn new(device: Box<dyn DeviceContext>) -> ExecContext {
        let empty = || OutputBuffer::new(0);
        ExecContext {
            device,
            bindings: Vec::with_capacity(BINDINGS_KEPT + 1),
            staging_in: empty(),
            staging_out: empty(),
            input_slices: Vec::new(),
            output_slices: Vec::new(),
        }
    }

    /// The Binding of an earlier request of the same form, which becomes the newest.
    pub(crate) fn remembered(&mut self, arguments: &[Argument<'_>]) -> Option<&Arc<Binding>> {
        let position = self.bindings.iter().position(|binding| binding.admits(arguments))?;
        self.bindings[..=position].rotate_right(1);
        self.bindings.first()
    }

    /// Makes a Binding the one that runs next.
    pub(crate) fn make_newest(&mut self, binding: &Arc<Binding>, arguments: &[Argument<'_>]) {
        if !self.remembered(arguments).is_some_and(|known| Arc::ptr_eq(known, binding)) {
            self.remember(binding);
        }
    }

    /// Remembers a Binding and makes room for its runs.
    pub(crate) fn remember(&mut self, binding: &Arc<Binding>) {
        self.bindings.retain(|old| old.epoch == binding.epoch);
        self.bindings.insert(0, binding.clone());
        self.bindings.truncate(BINDINGS_KEPT);
        self.device.reserve(binding.workspace_bytes);
        for (staging, bytes) in
            [(&mut self.staging_in, binding.staging_in_bytes), (&mut self.staging_out, binding.staging_out_bytes)]
        {
            if staging.as_ref().len() < bytes {
                *staging = OutputBuffer::new(bytes);
            }
        }
        self.input_slices.reserve(binding.chunks[0].inputs.len());
        self.output_slices.reserve(binding.outputs.len());
    }

    /// Runs the newest Binding on a request of its form. Allocates nothing.
    pub(crate) fn run_newest(
        &mut self,
        arguments: &[Argument<'_>],
        outputs: &mut [&mut [u8]],
        content: PadContent,
    ) -> Result<DeviceRun, RunError> {
        // Taken out for the run, since a count of references would be shared with other runs.
        let bindings = std::mem::take(&mut self.bindings);
        let newest = bindings.first().expect("a Binding was remembered before this run");
        let result = self.run_binding(newest, arguments, outputs, content);
        self.bindings = bindings;
        result
    }

    fn run_binding(
        &mut self,
        binding: &Binding,
        arguments: &[Argument<'_>],
        outputs: &mut [&mut [u8]],
        content: PadContent,
    ) -> Result<DeviceRun, RunError> {
        let mut slowest = FASTEST;
        for chunk in &binding.chunks {
            let staging = self.staging_in.as_bytes_mut();
            for (place, argument) in chunk.inputs.iter().zip(arguments) {
                if let InputPlace::Staged { copy, start, bytes } = place {
                    copy.copy(argument.bytes, &mut staging[*start..start + bytes], content);
                }
            }
            let staged = self.staging_in.as_ref();
            let mut inputs: Vec<&[u8]> = std::mem::take(&mut self.input_slices);
            inputs.extend(chunk.inputs.iter().zip(arguments).map(|(place, argument)| match place {
                InputPlace::Caller { start, bytes } => &argument.bytes[*start..start + bytes],
                InputPlace::Staged { start, bytes, .. } => &staged[*start..start + bytes],
            }));
            let mut written: Vec<&mut [u8]> = std::mem::take(&mut self.output_slices);
            let mut rest = self.staging_out.as_bytes_mut();
            let mut at = 0;
            for (place, output) in chunk.outputs.iter().zip(outputs.iter_mut()) {
                written.push(match place {
                    OutputPlace::Caller { start, bytes } => &mut output[*start..start + bytes],
                    OutputPlace::Staged { start, bytes, .. } => {
                        // Places lie in the order of the outputs.
                        let (_, from) = rest.split_at_mut(start - at);
                        let (place, after) = from.split_at_mut(*bytes);
                        (rest, at) = (after, start + bytes);
                        place
                    }
                });
            }
            let result = self.device.run(&*chunk.entry.loaded, &inputs, &mut written);
            self.input_slices = emptied(inputs);
            self.output_slices = emptied_mut(written);
            slowest = slowest.slower(result?);
            let staged = self.staging_out.as_ref();
            for (place, output) in chunk.outputs.iter().zip(outputs.iter_mut()) {
                if let OutputPlace::Staged { copy: Some(copy), start, bytes } = place {
                    copy.copy(&staged[*start..start + bytes], output, PadContent::LastRow);
                }
            }
        }
        Ok(slowest)
    }

    /// Bytes of workspace and padded copies.
    pub(crate) fn bytes(&self) -> u64 {
        let staging = self.staging_in.as_ref().len() + self.staging_out.as_ref().len();
        self.device.workspace_bytes() + staging as u64
    }
}

/// The memory of a vector without its elements. Collecting a mapped vector of elements of the same size reuses its
/// memory; a test counts that nothing is allocated.
fn emptied(mut slices: Vec<&[u8]>) -> Vec<&'static [u8]> {
    slices.clear();
    slices.into_iter().map(|_| &[][..]).collect()
}

fn emptied_mut(mut slices: Vec<&mut [u8]>) -> Vec<&'static mut [u8]> {
    slices.clear();
    slices.into_iter().map(|_| &mut [][..]).collect()
}

/// A bounded number of contexts. Taking one that is free is one compare-and-swap; no lock is shared by two runs.
pub(crate) struct Contexts {
    slots: Vec<Slot>,
    /// Slots that are used.
    limit: AtomicUsize,
    device: Arc<dyn Device>,
    wait: ContextWait,
    waiting_max: usize,
    waiting: AtomicUsize,
    gate: Mutex<()>,
    freed: Condvar,
}

struct Slot {
    context: Mutex<Option<ExecContext>>,
    /// What the last request on it looked like, so that an alternation of two forms settles on two contexts.
    form: AtomicI64,
}

/// A context that this run owns.
pub(crate) struct Taken<'a> {
    pool: &'a Contexts,
    slot: &'a Slot,
    context: Option<MutexGuard<'a, Option<ExecContext>>>,
}

impl Contexts {
    pub(crate) fn new(count: usize, device: Arc<dyn Device>, wait: ContextWait, waiting_max: usize) -> Contexts {
        let slot = || Slot { context: Mutex::new(None), form: AtomicI64::new(i64::MIN) };
        Contexts {
            slots: std::iter::repeat_with(slot).take(count.max(1)).collect(),
            limit: AtomicUsize::new(count.max(1)),
            device,
            wait,
            waiting_max,
            waiting: AtomicUsize::new(0),
            gate: Mutex::new(()),
            freed: Condvar::new(),
        }
    }

    /// How many there are at most.
    pub(crate) fn len(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Uses at most this many from now on.
    pub(crate) fn limit(&self, count: usize) {
        self.limit.fetch_min(count.max(1), Ordering::Relaxed);
    }

    /// A free context, one that last saw a request of this form where there is one. Says whether it had to wait.
    pub(crate) fn take(&self, form: i64) -> Result<(Taken<'_>, bool), SessionError> {
        match self.try_take(form) {
            Some(taken) => Ok((taken, false)),
            None => Ok((self.wait_for_one(form)?, true)),
        }
    }

    fn try_take(&self, form: i64) -> Option<Taken<'_>> {
        let slots = &self.slots[..self.len()];
        let alike = slots.iter().filter(|slot| slot.form.load(Ordering::Relaxed) == form);
        let (slot, context) = alike.chain(slots).find_map(|slot| match slot.context.try_lock() {
            Ok(context) => Some((slot, context)),
            Err(TryLockError::Poisoned(poisoned)) => {
                // The run that panicked may have left anything behind.
                slot.context.clear_poison();
                let mut context = poisoned.into_inner();
                *context = None;
                Some((slot, context))
            }
            Err(TryLockError::WouldBlock) => None,
        })?;
        slot.form.store(form, Ordering::Relaxed);
        Some(Taken { pool: self, slot, context: Some(context) })
    }

    #[cold]
    fn wait_for_one(&self, form: i64) -> Result<Taken<'_>, SessionError> {
        let started = Instant::now();
        let ContextWait::Block(limit) = self.wait else {
            return Err(SessionError::Busy { contexts: self.len(), waiting: self.waiting.load(Ordering::Relaxed) });
        };
        let mut gate = self.gate.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if self.waiting.load(Ordering::SeqCst) >= self.waiting_max {
            return Err(SessionError::Busy { contexts: self.len(), waiting: self.waiting_max });
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let result = loop {
            // Whoever gives a context back after this look sees that someone waits.
            fence(Ordering::SeqCst);
            if let Some(taken) = self.try_take(form) {
                break Ok(taken);
            }
            let waited = started.elapsed();
            if waited >= limit {
                break Err(SessionError::Timeout { waited_ms: waited.as_millis() as u64 });
            }
            let woken = self.freed.wait_timeout(gate, limit - waited);
            gate = woken.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Bytes of all contexts that exist and are not in use.
    pub(crate) fn idle_bytes(&self) -> u64 {
        let bytes =
            |slot: &Slot| slot.context.try_lock().ok().and_then(|context| context.as_ref().map(ExecContext::bytes));
        self.slots.iter().filter_map(bytes).sum()
    }
}

impl Taken<'_> {
    /// The context.
    pub(crate) fn get(&mut self) -> &mut ExecContext {
        let context = self.context.as_mut().expect("held until drop");
        context.get_or_insert_with(|| ExecContext::new(self.pool.device.context(0)))
    }

    /// Forgets the context: the next run makes a new one.
    pub(crate) fn discard(&mut self) {
        if let Some(context) = self.context.as_mut() {
            **context = None;
            self.slot.form.store(i64::MIN, Ordering::Relaxed);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        drop(self.context.take());
        fence(Ordering::SeqCst);
        if self.pool.waiting.load(Ordering::SeqCst) > 0 {
            // Through the gate, so that a waiter is either before its look or asleep.
            drop(self.pool.gate.lock());
            self.pool.freed.notify_one();
        }
    }
}
