//! Device memory that only the driver's own work can touch, and pinned host memory.

use crate::fault;
use crate::state::{Call, ILLEGAL_ADDRESS, INVALID_VALUE, OUT_OF_MEMORY, State, Status};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap};
use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ffi::c_void;

/// Address space of all devices together. Addresses are never used twice, so there is plenty.
const ARENA_BYTES: usize = 1 << 38;
const PAGE: usize = 4096;
/// What the real drivers align allocations to.
const ALIGNMENT: usize = 256;
/// Memory of one device.
pub(crate) const DEVICE_BYTES: usize = 8 << 30;
/// The attribute of an address that says which device it is of.
const DEVICE_ORDINAL: i32 = 9;
/// Fresh memory: not a number in every float type.
const FRESH: u8 = 0xFF;
/// What lies around an allocation on its pages.
const CANARY: u8 = 0xFD;
/// Fresh pinned memory.
const PINNED_FRESH: u8 = 0xCD;

struct Allocation {
    len: usize,
    device: usize,
    /// First page.
    pages: usize,
    pages_len: usize,
    is_live: bool,
}

/// The memory of all devices.
pub(crate) struct Memory {
    arena: usize,
    used: usize,
    allocations: BTreeMap<usize, Allocation>,
    pinned: BTreeMap<usize, usize>,
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the system's choice disturbs nothing.
        let arena = unsafe { mmap_anonymous(std::ptr::null_mut(), ARENA_BYTES, ProtFlags::empty(), flags) };
        let arena = arena.expect("the fake driver can reserve address space") as usize;
        fault::watch(arena, arena + ARENA_BYTES);
        Memory { arena, used: 0, allocations: BTreeMap::new(), pinned: BTreeMap::new() }
    }

    pub(crate) fn live_count(&self) -> usize {
        self.allocations.values().filter(|allocation| allocation.is_live).count()
    }

    pub(crate) fn pinned_count(&self) -> usize {
        self.pinned.len()
    }

    pub(crate) fn used_bytes(&self, device: usize) -> usize {
        let live = self.allocations.values().filter(|allocation| allocation.is_live && allocation.device == device);
        live.map(|allocation| allocation.len).sum()
    }

    /// The allocation that an address lies in or ends, dead or alive.
    fn find(&self, address: u64) -> Option<(usize, &Allocation)> {
        let (start, allocation) = self.allocations.range(..=address as usize).next_back()?;
        (address as usize <= start + allocation.len).then_some((*start, allocation))
    }

    pub(crate) fn is_in_arena(&self, address: u64) -> bool {
        (self.arena..self.arena + ARENA_BYTES).contains(&(address as usize))
    }

    /// Whether an address lies in the allocation that starts at `start`.
    pub(crate) fn is_inside(&self, start: u64, address: u64) -> bool {
        self.find(address).is_some_and(|(found, _)| found as u64 == start)
    }

    /// Whether host bytes lie in one pinned allocation.
    pub(crate) fn is_pinned(&self, address: usize, bytes: usize) -> bool {
        let found = self.pinned.range(..=address).next_back();
        found.is_some_and(|(start, len)| address + bytes <= start + len)
    }

    /// Lets work touch live allocations, or nobody.
    pub(crate) fn open(&self, is_open: bool) {
        let flags = if is_open { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::empty() };
        for allocation in self.allocations.values().filter(|allocation| allocation.is_live) {
            protect(allocation, flags);
        }
    }

    /// The start of an allocation whose surroundings were written, which are put right again; memory is open.
    pub(crate) fn find_overrun(&mut self) -> Option<u64> {
        let live = self.allocations.iter().filter(|(_, allocation)| allocation.is_live);
        for (start, allocation) in live {
            let (before, end) = (*start - allocation.pages, *start + allocation.len);
            let after = allocation.pages + allocation.pages_len - end;
            // SAFETY: the pages of a live allocation are open while work runs, and only this thread touches them.
            let before = unsafe { std::slice::from_raw_parts_mut(allocation.pages as *mut u8, before) };
            // SAFETY: as above; the two slices lie on different sides of the allocation.
            let after = unsafe { std::slice::from_raw_parts_mut(end as *mut u8, after) };
            if before.iter().chain(after.iter()).any(|byte| *byte != CANARY) {
                before.fill(CANARY);
                after.fill(CANARY);
                return Some(*start as u64);
            }
        }
        None
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the arena was mapped by `new` with this size, and its owner is going away.
        let _ = unsafe { munmap(self.arena as *mut c_void, ARENA_BYTES) };
    }
}

fn protect(allocation: &Allocation, flags: MprotectFlags) {
    // SAFETY: the pages belong to the arena, and only the fake driver uses them.
    let status = unsafe { mprotect(allocation.pages as *mut c_void, allocation.pages_len, flags) };
    status.expect("pages of the arena can be protected");
}

impl State {
    pub(crate) fn memory_info(&mut self, call: &Call, free: &mut usize, total: &mut usize) -> Status {
        let device = self.current(call)?;
        *total = DEVICE_BYTES;
        *free = DEVICE_BYTES - self.memory.used_bytes(device);
        Ok(())
    }

    pub(crate) fn memory_allocate(&mut self, call: &Call, address: &mut u64, bytes: usize) -> Status {
        let device = self.current(call)?;
        self.refuse_in_capture(call)?;
        if call.gives_null() {
            *address = 0;
            return Ok(());
        }
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let padded = bytes.next_multiple_of(ALIGNMENT);
        let pages_len = padded.next_multiple_of(PAGE);
        if self.memory.used_bytes(device) + bytes > DEVICE_BYTES || self.memory.used + pages_len > ARENA_BYTES - PAGE {
            return Err(OUT_OF_MEMORY);
        }
        // A page before and after is never opened. The bytes lie at the end of their pages, so that running over the
        // end faults at once; what little is left over is filled and compared.
        let pages = self.memory.arena + self.memory.used + PAGE;
        self.memory.used += pages_len + PAGE;
        let start = pages + pages_len - padded;
        let allocation = Allocation { len: bytes, device, pages, pages_len, is_live: true };
        protect(&allocation, MprotectFlags::READ | MprotectFlags::WRITE);
        // SAFETY: the pages are fresh, open and known to nobody else.
        unsafe { (pages as *mut u8).write_bytes(CANARY, pages_len) };
        // SAFETY: as above; the allocation lies inside its pages.
        unsafe { (start as *mut u8).write_bytes(FRESH, bytes) };
        protect(&allocation, MprotectFlags::empty());
        self.memory.allocations.insert(start, allocation);
        *address = start as u64;
        Ok(())
    }

    /// The device that an address is of.
    pub(crate) fn memory_device(&mut self, call: &Call, attribute: i32, address: u64) -> Result<i32, i32> {
        self.current(call)?;
        let found = self.memory.find(address).filter(|(_, allocation)| allocation.is_live);
        match found.filter(|_| attribute == DEVICE_ORDINAL) {
            Some((_, allocation)) => Ok(allocation.device as i32),
            None => Err(INVALID_VALUE),
        }
    }

    pub(crate) fn memory_free(&mut self, call: &Call, address: u64) -> Status {
        self.refuse_in_capture(call)?;
        let Some(allocation) = self.memory.allocations.get(&(address as usize)) else {
            self.violate(call, "R3", format!("{address:#x} is not the start of an allocation"));
            return Err(INVALID_VALUE);
        };
        let (device, is_live) = (allocation.device, allocation.is_live);
        if !is_live {
            self.violate(call, "R3", format!("{address:#x} was freed before"));
            return Err(INVALID_VALUE);
        }
        self.check_device(call, "memory", device)?;
        if self.execs.values().any(|exec| exec.refers_to(&self.memory, address)) {
            self.violate(call, "R3", format!("a live graph exec refers to the memory at {address:#x}"));
        }
        // The real drivers wait for the device here too.
        self.drain_device(call, device);
        let allocation = self.memory.allocations.get_mut(&(address as usize)).expect("the allocation was found above");
        allocation.is_live = false;
        // SAFETY: the pages are the allocation's own, and nobody may use them again.
        let _ = unsafe { madvise(allocation.pages as *mut c_void, allocation.pages_len, Advice::LinuxDontNeed) };
        Ok(())
    }

    pub(crate) fn pinned_allocate(&mut self, call: &Call, start: &mut *mut c_void, bytes: usize) -> Status {
        self.current(call)?;
        self.refuse_in_capture(call)?;
        *start = std::ptr::null_mut();
        if call.gives_null() {
            return Ok(());
        }
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let layout = Layout::from_size_align(bytes, PAGE).map_err(|_| OUT_OF_MEMORY)?;
        // SAFETY: the layout has a size, since zero bytes were refused above.
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: the memory was just allocated with this size.
        unsafe { memory.write_bytes(PINNED_FRESH, bytes) };
        self.memory.pinned.insert(memory as usize, bytes);
        *start = memory.cast();
        Ok(())
    }

    pub(crate) fn pinned_free(&mut self, call: &Call, start: usize) -> Status {
        self.refuse_in_capture(call)?;
        let device = self.current(call)?;
        let Some(bytes) = self.memory.pinned.get(&start).copied() else {
            self.violate(call, "R3", format!("{start:#x} is not pinned memory, or was freed before"));
            return Err(INVALID_VALUE);
        };
        self.drain_device(call, device);
        self.memory.pinned.remove(&start);
        let layout = Layout::from_size_align(bytes, PAGE).expect("the layout was made before");
        // SAFETY: the memory was allocated with this layout and is forgotten.
        unsafe { dealloc(start as *mut u8, layout) };
        Ok(())
    }

    /// Requires that device bytes lie in one live allocation of the current device.
    pub(crate) fn check_extent(&mut self, call: &Call, address: u64, bytes: usize) -> Status {
        let Some((start, allocation)) = self.memory.find(address) else {
            self.violate(call, "R5", format!("{address:#x} is not in an allocation"));
            return Err(INVALID_VALUE);
        };
        let (end, device, is_live) = (start + allocation.len, allocation.device, allocation.is_live);
        if !is_live {
            self.violate(call, "R3", format!("the memory at {address:#x} was freed"));
            return Err(ILLEGAL_ADDRESS);
        }
        if address as usize + bytes > end {
            let len = end - start;
            let sentence = format!("{bytes} bytes at {address:#x} leave the allocation of {len} bytes at {start:#x}");
            self.violate(call, "R5", sentence);
            return Err(INVALID_VALUE);
        }
        self.check_device(call, "memory", device)
    }

    /// Requires that host bytes are pinned, so that the device may copy them by itself.
    pub(crate) fn check_pinned(&mut self, call: &Call, address: usize, bytes: usize) -> Status {
        if self.memory.is_pinned(address, bytes) {
            return Ok(());
        }
        self.violate(call, "R5", format!("the {bytes} host bytes of an asynchronous copy are not pinned"));
        Err(INVALID_VALUE)
    }

    /// Requires that a kernel's word, if it looks like a device address, is one of live memory.
    pub(crate) fn check_word(&mut self, call: &Call, kernel: &str, word: u64) -> Status {
        if !self.memory.is_in_arena(word) {
            return Ok(());
        }
        match self.memory.find(word) {
            Some((_, allocation)) if allocation.is_live => {
                let device = allocation.device;
                self.check_device(call, "memory", device)
            }
            Some(_) => {
                self.violate(call, "R3", format!("kernel {kernel} was given {word:#x}, which was freed"));
                Err(ILLEGAL_ADDRESS)
            }
            None => {
                self.violate(call, "R5", format!("kernel {kernel} was given {word:#x}, which is in no allocation"));
                Err(ILLEGAL_ADDRESS)
            }
        }
    }
}
