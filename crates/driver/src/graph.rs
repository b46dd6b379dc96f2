//! Recorded work: built node by node or captured, then instantiated and launched as a whole.

use crate::buffer::{DeviceBuffer, PinnedBuffer};
use crate::device::Device;
use crate::error::DriverError;
use crate::module::{Function, Module};
use crate::node::{Copy, CopyKind, CudaCopy, CudaFill, HipFill, with_kernel};
use crate::stream::Stream;
use crate::table::{Handle, Own};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// One node of a graph, and of the execs instantiated from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct NodeId(Handle);

/// Work and its order, not yet ready to run. Destroyed on drop; execs made from it live on.
pub struct Graph {
    device: Device,
    raw: Handle,
    /// Modules of the kernels that were added by hand.
    modules: Vec<Module>,
    /// The driver does not lock graphs, so only one thread at a time may hold one.
    _one_thread: PhantomData<Cell<()>>,
}

impl Graph {
    /// Makes a graph without nodes.
    pub fn new(device: &Device) -> Result<Graph, DriverError> {
        let entry = &device.enter()?.graph_create;
        let mut raw = 0;
        // SAFETY: the call writes one handle to a place that is ours; zero is the only flag there is.
        let code = unsafe { (entry.call)(&mut raw, 0) };
        let raw = device.check_handle(entry.name, code, raw)?;
        Ok(Graph::from_raw(device, raw))
    }

    /// Owns a graph that the driver gave.
    pub(crate) fn from_raw(device: &Device, raw: Handle) -> Graph {
        Graph { device: device.clone(), raw, modules: Vec::new(), _one_thread: PhantomData }
    }

    /// How many nodes it has.
    pub fn node_count(&self) -> Result<usize, DriverError> {
        let entry = &self.device.enter()?.graph_nodes;
        let mut count = 0;
        // SAFETY: without an array the call only writes the count, to a place that is ours.
        let code = unsafe { (entry.call)(self.raw, std::ptr::null_mut(), &mut count) };
        self.device.check(entry.name, code)?;
        Ok(count)
    }

    /// Adds a kernel that runs after `after`. Its module stays loaded as long as the graph and its execs.
    ///
    /// # Safety
    /// As for [`Stream::launch`], for as long as an exec of this graph may be launched.
    pub unsafe fn add_kernel(
        &mut self,
        after: &[NodeId],
        function: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[u64],
    ) -> Result<NodeId, DriverError> {
        self.device.check_same("add_kernel", "function", function.device())?;
        let entry = &self.device.enter()?.graph_add_kernel;
        let vendor = self.device.library().vendor();
        let mut node = 0;
        let code = with_kernel(vendor, function, grid, block, shared_bytes, arguments, |parameters| {
            // SAFETY: the handles are alive, the driver copies the parameters, and the caller vouches for their meaning.
            unsafe { (entry.call)(&mut node, self.raw, handles(after), after.len(), parameters) }
        });
        let node = self.device.check_handle(entry.name, code, node)?;
        keep(&mut self.modules, function.module());
        Ok(NodeId(node))
    }

    /// Adds a copy from pinned memory to the device.
    ///
    /// # Safety
    /// As for [`Stream::copy_to_device`], for as long as an exec of this graph may be launched.
    pub unsafe fn add_copy_to_device(
        &mut self,
        after: &[NodeId],
        destination: &DeviceBuffer,
        offset: usize,
        source: &PinnedBuffer,
        range: Range<usize>,
    ) -> Result<NodeId, DriverError> {
        self.device.check_same("add_copy_to_device", "destination", destination.device())?;
        let from = source.at("add_copy_to_device", &range)? as u64;
        let to = destination.at("add_copy_to_device", offset, range.len())?;
        self.add_copy(after, Copy { to, from, bytes: range.len(), kind: CopyKind::ToDevice })
    }

    /// Adds a copy from the device to pinned memory.
    ///
    /// # Safety
    /// As for [`Stream::copy_from_device`], for as long as an exec of this graph may be launched.
    pub unsafe fn add_copy_from_device(
        &mut self,
        after: &[NodeId],
        destination: &PinnedBuffer,
        range: Range<usize>,
        source: &DeviceBuffer,
        offset: usize,
    ) -> Result<NodeId, DriverError> {
        self.device.check_same("add_copy_from_device", "source", source.device())?;
        let to = destination.at("add_copy_from_device", &range)? as u64;
        let from = source.at("add_copy_from_device", offset, range.len())?;
        self.add_copy(after, Copy { to, from, bytes: range.len(), kind: CopyKind::FromDevice })
    }

    /// Adds a copy between buffers of the device. They must live as long as an exec of this graph may be launched.
    pub fn add_copy_device(
        &mut self,
        after: &[NodeId],
        destination: &DeviceBuffer,
        destination_offset: usize,
        source: &DeviceBuffer,
        source_offset: usize,
        bytes: usize,
    ) -> Result<NodeId, DriverError> {
        self.device.check_same("add_copy_device", "destination", destination.device())?;
        self.device.check_same("add_copy_device", "source", source.device())?;
        let to = destination.at("add_copy_device", destination_offset, bytes)?;
        let from = source.at("add_copy_device", source_offset, bytes)?;
        self.add_copy(after, Copy { to, from, bytes, kind: CopyKind::Device })
    }

    /// Adds the filling of a range with one byte. The buffer must live as long as an exec may be launched.
    pub fn add_fill(
        &mut self,
        after: &[NodeId],
        destination: &DeviceBuffer,
        offset: usize,
        bytes: usize,
        value: u8,
    ) -> Result<NodeId, DriverError> {
        self.device.check_same("add_fill", "destination", destination.device())?;
        let to = destination.at("add_fill", offset, bytes)?;
        check_some("add_fill", bytes)?;
        self.device.enter()?;
        let (after_start, after_count) = (handles(after), after.len());
        let (value, element_bytes, height) = (u32::from(value), 1, 1);
        let mut node = 0;
        let (name, code) = match self.device.library().own() {
            Own::Cuda(own) => {
                let fill = CudaFill { to, pitch_bytes: 0, value, element_bytes, width: bytes, height };
                let (entry, fill) = (&own.graph_add_fill, std::ptr::from_ref(&fill).cast());
                let context = self.device.context();
                // SAFETY: the handles are alive, and the driver copies the parameters, which lie in this frame.
                let code = unsafe { (entry.call)(&mut node, self.raw, after_start, after_count, fill, context) };
                (entry.name, code)
            }
            Own::Hip(own) => {
                let fill = HipFill { to, element_bytes, height, pitch_bytes: bytes, value, width: bytes };
                let (entry, fill) = (&own.graph_add_fill, std::ptr::from_ref(&fill).cast());
                // SAFETY: the handles are alive, and the driver copies the parameters, which lie in this frame.
                let code = unsafe { (entry.call)(&mut node, self.raw, after_start, after_count, fill) };
                (entry.name, code)
            }
        };
        self.device.check_handle(name, code, node).map(NodeId)
    }

    fn add_copy(&mut self, after: &[NodeId], copy: Copy) -> Result<NodeId, DriverError> {
        check_some("add_copy", copy.bytes)?;
        self.device.enter()?;
        let (after_start, after_count) = (handles(after), after.len());
        let mut node = 0;
        let (name, code) = match self.device.library().own() {
            Own::Cuda(own) => {
                let parameters = CudaCopy::new(copy);
                let (entry, parameters) = (&own.graph_add_copy, std::ptr::from_ref(&parameters).cast());
                let context = self.device.context();
                // SAFETY: the handles are alive, and the driver copies the parameters, which lie in this frame.
                let code = unsafe { (entry.call)(&mut node, self.raw, after_start, after_count, parameters, context) };
                (entry.name, code)
            }
            Own::Hip(own) => {
                let (entry, kind) = (&own.graph_add_copy, copy.kind as i32);
                // SAFETY: the handles are alive; both ranges lie inside buffers, which live by the caller's word.
                let code = unsafe {
                    (entry.call)(&mut node, self.raw, after_start, after_count, copy.to, copy.from, copy.bytes, kind)
                };
                (entry.name, code)
            }
        };
        self.device.check_handle(name, code, node).map(NodeId)
    }

    /// Makes the graph ready to be launched any number of times.
    pub fn instantiate(&self) -> Result<GraphExec, DriverError> {
        // It takes memory of the device.
        let _turn = self.device.gate().disturb();
        let entry = &self.device.enter()?.graph_instantiate;
        let mut raw = 0;
        // SAFETY: the graph is alive, and the call writes one handle to a place that is ours.
        let code = unsafe { (entry.call)(&mut raw, self.raw, 0) };
        let raw = self.device.check_handle(entry.name, code, raw)?;
        Ok(GraphExec { device: self.device.clone(), raw, modules: Mutex::new(self.modules.clone()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is ours and is not used again.
        unsafe { self.device.destroy(|shared| &shared.graph_destroy, self.raw) };
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Graph({:#x})", self.raw)
    }
}

/// A graph that can be launched. Destroyed on drop.
pub struct GraphExec {
    device: Device,
    raw: Handle,
    /// Modules of its kernels. The lock also keeps threads apart, since the driver does not.
    modules: Mutex<Vec<Module>>,
}

impl GraphExec {
    /// Queues all of its work, with the addresses that were recorded.
    ///
    /// It is safe because whoever recorded the work promised that those addresses stay valid while this exec exists.
    pub fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        self.device.check_same("launch", "stream", stream.device())?;
        let _modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = &self.device.enter()?.exec_launch;
        // SAFETY: both handles are alive, and the lock keeps other threads away from the exec.
        let code = unsafe { (entry.call)(self.raw, stream.handle()) };
        self.device.check(entry.name, code)
    }

    /// Brings what the first launch needs to the device ahead of it. HIP has no such call in all versions and does so
    /// at instantiation.
    pub fn upload(&self, stream: &Stream) -> Result<(), DriverError> {
        self.device.check_same("upload", "stream", stream.device())?;
        let _modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let Own::Cuda(own) = self.device.library().own() else { return Ok(()) };
        self.device.enter()?;
        let entry = &own.exec_upload;
        // SAFETY: both handles are alive, and the lock keeps other threads away from the exec.
        let code = unsafe { (entry.call)(self.raw, stream.handle()) };
        self.device.check(entry.name, code)
    }

    /// Changes the parameters of a kernel for later launches.
    ///
    /// # Safety
    /// As for [`Stream::launch`], for as long as this exec may be launched.
    pub unsafe fn set_kernel(
        &self,
        node: NodeId,
        function: &Function,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        arguments: &[u64],
    ) -> Result<(), DriverError> {
        self.device.check_same("set_kernel", "function", function.device())?;
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = &self.device.enter()?.exec_set_kernel;
        let vendor = self.device.library().vendor();
        let code = with_kernel(vendor, function, grid, block, shared_bytes, arguments, |parameters| {
            // SAFETY: the handles are alive, the driver copies the parameters, and the caller vouches for their meaning.
            unsafe { (entry.call)(self.raw, node.0, parameters) }
        });
        self.device.check(entry.name, code)?;
        keep(&mut modules, function.module());
        Ok(())
    }

    /// Changes a copy between buffers of the device for later launches. They must live as long as this exec.
    pub fn set_copy_device(
        &self,
        node: NodeId,
        destination: &DeviceBuffer,
        destination_offset: usize,
        source: &DeviceBuffer,
        source_offset: usize,
        bytes: usize,
    ) -> Result<(), DriverError> {
        self.device.check_same("set_copy_device", "destination", destination.device())?;
        self.device.check_same("set_copy_device", "source", source.device())?;
        let to = destination.at("set_copy_device", destination_offset, bytes)?;
        let from = source.at("set_copy_device", source_offset, bytes)?;
        check_some("set_copy_device", bytes)?;
        let _modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.enter()?;
        let copy = Copy { to, from, bytes, kind: CopyKind::Device };
        let (name, code) = match self.device.library().own() {
            Own::Cuda(own) => {
                let parameters = CudaCopy::new(copy);
                let (entry, parameters) = (&own.exec_set_copy, std::ptr::from_ref(&parameters).cast());
                // SAFETY: the handles are alive, and the driver copies the parameters, which lie in this frame.
                (entry.name, unsafe { (entry.call)(self.raw, node.0, parameters, self.device.context()) })
            }
            Own::Hip(own) => {
                let (entry, kind) = (&own.exec_set_copy, copy.kind as i32);
                // SAFETY: the handles are alive, and both ranges lie inside buffers of this device.
                (entry.name, unsafe { (entry.call)(self.raw, node.0, to, from, bytes, kind) })
            }
        };
        self.device.check(name, code)
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let _turn = self.device.gate().disturb();
        // SAFETY: the exec is ours and is not used again; the driver lets launches in flight finish.
        unsafe { self.device.destroy(|shared| &shared.exec_destroy, self.raw) };
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "GraphExec({:#x})", self.raw)
    }
}

/// A node of no bytes is refused by the drivers, each in its own way.
fn check_some(call: &'static str, bytes: usize) -> Result<(), DriverError> {
    match bytes {
        0 => Err(DriverError::Invalid { call, reason: "a node of no bytes cannot be added".to_string() }),
        _ => Ok(()),
    }
}

/// The nodes as the driver wants them.
fn handles(nodes: &[NodeId]) -> *const Handle {
    // A NodeId is one handle and nothing else, so a slice of them is an array of handles.
    const { assert!(size_of::<NodeId>() == size_of::<Handle>()) };
    if nodes.is_empty() { std::ptr::null() } else { nodes.as_ptr().cast() }
}

fn keep(modules: &mut Vec<Module>, module: &Module) {
    if !modules.iter().any(|kept| kept.is_same(module)) {
        modules.push(module.clone());
    }
}
