//! The contexts of a Session: a bounded number, each of one of its devices for life. Taking one that is free is one
//! compare-and-swap; no lock is shared by two runs. A device that has failed gives no more contexts.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use precast_program::{Device, RunError};

use crate::error::SessionError;
use crate::exec_context::ExecContext;
use crate::options::ContextWait;

/// A bounded number of contexts.
pub(crate) struct Contexts {
    slots: Vec<Slot>,
    /// Slots that are used.
    limit: AtomicUsize,
    /// Each context is of the device of its slot.
    devices: Arc<[Arc<dyn Device>]>,
    /// Which devices have failed.
    lost: Vec<AtomicBool>,
    wait: ContextWait,
    waiting_max: usize,
    waiting: AtomicUsize,
    gate: Mutex<()>,
    freed: Condvar,
}

struct Slot {
    /// Position of its device.
    device: usize,
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
    /// At least one context a device; neighbours are of different devices, so that requests spread over them.
    pub(crate) fn new(
        count: usize,
        devices: Arc<[Arc<dyn Device>]>,
        wait: ContextWait,
        waiting_max: usize,
    ) -> Contexts {
        let count = count.max(devices.len()).max(1);
        let slot = |position: usize| Slot {
            device: position % devices.len().max(1),
            context: Mutex::new(None),
            form: AtomicI64::new(i64::MIN),
        };
        Contexts {
            slots: (0..count).map(slot).collect(),
            limit: AtomicUsize::new(count),
            lost: devices.iter().map(|_| AtomicBool::new(false)).collect(),
            devices,
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

    /// Uses at most this many a device from now on.
    pub(crate) fn limit(&self, count: usize) {
        self.limit.fetch_min(count.max(1) * self.devices.len(), Ordering::Relaxed);
    }

    /// How many there are at most for each device.
    pub(crate) fn len_a_device(&self) -> usize {
        self.len().div_ceil(self.devices.len().max(1))
    }

    /// Gives no more contexts of a device.
    #[cold]
    fn lose(&self, device: usize) {
        self.lost[device].store(true, Ordering::Relaxed);
        tracing::error!(device, "a device of the Session has failed; it gets no more requests");
    }

    fn is_lost(&self, device: usize) -> bool {
        self.lost[device].load(Ordering::Relaxed)
    }

    /// A free context, of a certain device where one is named, and one that last saw a request of this form where there is
    /// one. Says whether it had to wait.
    pub(crate) fn take(&self, form: i64, device: Option<usize>) -> Result<(Taken<'_>, bool), SessionError> {
        match self.try_take(form, device) {
            Some(taken) => Ok((taken, false)),
            None => Ok((self.wait_for_one(form, device)?, true)),
        }
    }

    fn try_take(&self, form: i64, device: Option<usize>) -> Option<Taken<'_>> {
        let is_wanted = |slot: &&Slot| device.is_none_or(|device| slot.device == device) && !self.is_lost(slot.device);
        let slots = self.slots[..self.len()].iter().filter(is_wanted);
        let alike = slots.clone().filter(|slot| slot.form.load(Ordering::Relaxed) == form);
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
    fn wait_for_one(&self, form: i64, device: Option<usize>) -> Result<Taken<'_>, SessionError> {
        let mut wanted = (0..self.devices.len()).filter(|&at| device.is_none_or(|device| device == at));
        if wanted.all(|device| self.is_lost(device)) {
            return Err(SessionError::DeviceLost(match device {
                Some(device) => format!("device {device} of the Session has failed and must be opened again"),
                None => "every device of the Session has failed and must be opened again".to_string(),
            }));
        }
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
            if let Some(taken) = self.try_take(form, device) {
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
        let device = self.slot.device;
        context.get_or_insert_with(|| ExecContext::new(self.pool.devices[device].context(0), device))
    }

    /// Forgets the context after a run that failed, and its device where that has.
    pub(crate) fn discard_after(&mut self, error: &RunError) {
        if matches!(error, RunError::DeviceLost(_)) {
            self.pool.lose(self.slot.device);
        }
        self.discard();
    }

    /// The next run makes a new one.
    fn discard(&mut self) {
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
