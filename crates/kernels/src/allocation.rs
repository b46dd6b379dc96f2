//! Zeroed, aligned memory: of the allocator where it is small, a mapping of its own where it is large.

use crate::arena::ALIGNMENT;
use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Allocations of this many bytes or more are mappings of their own: pages that nobody touches take no memory, and what
/// is dropped goes back to the system at once, where an allocator may keep it.
const MAPPED_BYTES_MIN: usize = 64 << 10;
/// Mappings of this many bytes or more ask for large pages: weights that are read from end to end need fewer of them.
#[cfg(target_os = "linux")]
const LARGE_PAGES_BYTES_MIN: usize = 2 << 20;

/// Zeroed memory that starts at a multiple of `ALIGNMENT`.
pub(crate) struct Allocation {
    start: NonNull<u8>,
    bytes: usize,
    /// Whose memory it is, if it is a mapping.
    mapping: Option<MmapMut>,
}

// SAFETY: the allocation is owned, like a `Box<[u8]>`.
unsafe impl Send for Allocation {}
// SAFETY: shared access only reads, unless it comes from an owner that was borrowed mutably.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// This many zero bytes.
    pub(crate) fn zeroed(bytes: usize) -> Allocation {
        if bytes >= MAPPED_BYTES_MIN
            && let Ok(mut mapping) = MmapMut::map_anon(bytes)
            && let Some(start) = NonNull::new(mapping.as_mut_ptr())
        {
            #[cfg(target_os = "linux")]
            if bytes >= LARGE_PAGES_BYTES_MIN {
                // A system that has none says so, and small ones serve as well.
                let _ = mapping.advise(memmap2::Advice::HugePage);
            }
            return Allocation { start, bytes, mapping: Some(mapping) };
        }
        let layout = Allocation::layout(bytes);
        // SAFETY: the layout has at least `ALIGNMENT` bytes.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Allocation { start, bytes, mapping: None }
    }

    /// Where it starts.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes.max(ALIGNMENT), ALIGNMENT).expect("a size below isize::MAX")
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: the allocation has this many initialised bytes and lives as long as the borrow.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.mapping.is_some() {
            return;
        }
        // SAFETY: allocated by `zeroed` with the same layout, as it is no mapping.
        unsafe { dealloc(self.start.as_ptr(), Allocation::layout(self.bytes)) };
    }
}

impl AsRef<[u8]> for Allocation {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}
