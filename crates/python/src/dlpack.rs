//! DLPack: tensors of other libraries in place, and ours to them. Declared after DLPack's specification, versions 0 and 1.
#![allow(unsafe_code, reason = "DLPack is an interface of C structs and function pointers")]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use precast::DType;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};

use crate::element_type::{dlpack_type, from_dlpack_type};
use crate::exceptions::usage;
use crate::gpu_place::{dlpack_gpu, dlpack_stream};
use crate::ort_value::OrtValue;

/// DLPack's kind and number of the host.
pub const HOST: (i32, i32) = (1, 0);
/// Kinds of devices whose memory the host reads: its own, and memory pinned for CUDA or ROCm.
const READ_BY_HOST: [i32; 3] = [1, 3, 11];
/// The version that capsules with a version are made for.
const VERSION: Version = Version { major: 1, minor: 0 };
const FLAG_READ_ONLY: u64 = 1;

const PLAIN: &CStr = c"dltensor";
const PLAIN_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    kind: i32,
    number: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct PlainManaged {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut PlainManaged)>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct VersionedManaged {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut VersionedManaged)>,
    flags: u64,
    tensor: DlTensor,
}

/// What a capsule was made of and must be given back.
enum Managed {
    Plain(NonNull<PlainManaged>),
    Versioned(NonNull<VersionedManaged>),
}

/// A tensor of another library.
pub struct Imported {
    pub dtype: DType,
    pub shape: Vec<usize>,
    /// Where its first element lies.
    pub address: usize,
    pub is_writable: bool,
    /// DLPack's kind and number of where it lies.
    pub device: (i32, i32),
    /// Held as long as the elements are used.
    pub lender: Lender,
}

/// The library that a tensor is of, which is told when nobody uses it any more.
#[pyclass(frozen, name = "_Lender", module = "precast")]
pub struct Lender(#[allow(dead_code, reason = "given back when this is dropped")] Managed);

// SAFETY: the pointers are read once, while it is made, and given back once, when it is dropped; DLPack says that a deleter
// may be called on any thread.
unsafe impl Send for Lender {}
// SAFETY: as above.
unsafe impl Sync for Lender {}

impl Drop for Managed {
    fn drop(&mut self) {
        match self {
            Managed::Plain(managed) => {
                // SAFETY: whoever took the capsule's pointer calls its deleter, once.
                unsafe {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
            Managed::Versioned(managed) => {
                // SAFETY: as above.
                unsafe {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// A tensor of another library, in place.
pub fn import(object: &Bound<'_, PyAny>) -> PyResult<Imported> {
    let py = object.py();
    let capsule = match object.cast::<PyCapsule>() {
        Ok(capsule) => capsule.clone(),
        Err(_) => capsule_of(object)?,
    };
    let (managed, tensor, is_writable) = take(&capsule)?;
    // SAFETY: the managed tensor, which holds this one, is kept until the end of this function or in its result.
    let tensor = unsafe { tensor.as_ref() };
    let device = (tensor.device.kind, tensor.device.number);
    check_device(py, device)?;
    let DlType { code, bits, lanes } = tensor.dtype;
    let dtype = from_dlpack_type(code, bits).filter(|_| lanes == 1);
    let dtype = dtype.ok_or_else(|| {
        usage(
            py,
            &format!(
                "the tensor has elements of DLPack's type {code} with {bits} bits × {lanes}, which models have not"
            ),
        )
    })?;
    let (shape, is_row_major) = read_shape(tensor);
    if !is_row_major {
        return Err(usage(
            py,
            "the tensor's elements are not in row-major order; copy it first, as with .contiguous()",
        ));
    }
    let address = tensor.data.addr().wrapping_add(tensor.byte_offset as usize);
    // Host memory is read through it later.
    tensor.data.expose_provenance();
    Ok(Imported { dtype, shape, address, is_writable, device, lender: Lender(managed) })
}

/// Refuses devices whose memory neither the host nor a GPU of ours reads.
fn check_device(py: Python<'_>, device: (i32, i32)) -> PyResult<()> {
    if is_read_by_host(device) || dlpack_gpu(device).is_some() {
        return Ok(());
    }
    let (kind, number) = device;
    let text =
        format!("the tensor lies on DLPack's device {kind}:{number}, which neither the host nor a GPU of ours reads");
    Err(usage(py, &text))
}

/// Whether the host reads memory of this device.
pub fn is_read_by_host((kind, _): (i32, i32)) -> bool {
    READ_BY_HOST.contains(&kind)
}

/// The capsule that an object gives of itself, for the host or for work behind a GPU's default stream.
fn capsule_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
    let py = object.py();
    let device: (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    check_device(py, device)?;
    let arguments = PyDict::new(py);
    if let Some(gpu) = dlpack_gpu(device) {
        arguments.set_item("stream", dlpack_stream(gpu))?;
    }
    let versioned = arguments.copy()?;
    versioned.set_item("max_version", (VERSION.major, VERSION.minor))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&versioned)) {
        // Libraries from before version 1 do not know the word.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            object.call_method("__dlpack__", (), Some(&arguments))?
        }
        other => other?,
    };
    Ok(capsule.cast_into::<PyCapsule>()?)
}

/// Takes the tensor out of a capsule, which can be done once.
fn take(capsule: &Bound<'_, PyCapsule>) -> PyResult<(Managed, NonNull<DlTensor>, bool)> {
    if capsule.is_valid_checked(Some(VERSIONED)) {
        let pointer = capsule.pointer_checked(Some(VERSIONED))?.cast::<VersionedManaged>();
        rename(capsule, VERSIONED_USED)?;
        let managed = Managed::Versioned(pointer);
        // SAFETY: a capsule of this name points at such a struct, and its fields up to the version are the same for ever.
        let version = unsafe { (*pointer.as_ptr()).version };
        if version.major != VERSION.major {
            let text = format!("the capsule is of DLPack {}; {} is understood", version.major, VERSION.major);
            return Err(PyBufferError::new_err(text));
        }
        // SAFETY: as above, for this version.
        let (flags, tensor) = unsafe { ((*pointer.as_ptr()).flags, &raw mut (*pointer.as_ptr()).tensor) };
        let tensor = NonNull::new(tensor).ok_or_else(|| PyBufferError::new_err("the capsule is empty"))?;
        return Ok((managed, tensor, flags & FLAG_READ_ONLY == 0));
    }
    if !capsule.is_valid_checked(Some(PLAIN)) {
        return Err(PyBufferError::new_err("the capsule is no tensor of DLPack, or was used already"));
    }
    let pointer = capsule.pointer_checked(Some(PLAIN))?.cast::<PlainManaged>();
    rename(capsule, PLAIN_USED)?;
    // SAFETY: a capsule of this name points at such a struct.
    let tensor = unsafe { &raw mut (*pointer.as_ptr()).tensor };
    let tensor = NonNull::new(tensor).ok_or_else(|| PyBufferError::new_err("the capsule is empty"))?;
    Ok((Managed::Plain(pointer), tensor, true))
}

/// Marks a capsule as used, so that its own destructor leaves the tensor to us.
fn rename(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: the name lives for ever.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

/// Sizes of a tensor, and whether its elements are in row-major order.
fn read_shape(tensor: &DlTensor) -> (Vec<usize>, bool) {
    let rank = tensor.ndim.max(0) as usize;
    let list = |pointer: *const i64| -> Vec<i64> {
        // SAFETY: a tensor has as many sizes and strides as its rank says.
        (0..rank).map(|axis| unsafe { *pointer.add(axis) }).collect()
    };
    if rank == 0 {
        return (Vec::new(), true);
    }
    let shape: Vec<usize> = list(tensor.shape).into_iter().map(|size| size.max(0) as usize).collect();
    if tensor.strides.is_null() || shape.contains(&0) {
        return (shape, true);
    }
    let mut expected = 1_i64;
    for (&size, stride) in shape.iter().zip(list(tensor.strides)).rev() {
        if size != 1 && stride != expected {
            return (shape, false);
        }
        expected *= size as i64;
    }
    (shape, true)
}

/// What an exported tensor holds.
struct Exported {
    shape: Vec<i64>,
    strides: Vec<i64>,
    /// Given back with the rest.
    _value: Py<OrtValue>,
}

/// A capsule over a value's memory, or over a copy of it, on the device that is asked for: the value's own or the host.
pub fn export<'py>(
    value: &Bound<'py, OrtValue>,
    max_version: Option<(u32, u32)>,
    device: Option<(i32, i32)>,
    copies: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    let own = value.get().dlpack_device();
    let device = device.unwrap_or(own);
    if device != own {
        if device != HOST {
            let text = format!("an OrtValue on DLPack's device {own:?} is exported to it or to the host, {HOST:?}");
            return Err(PyBufferError::new_err(text));
        }
        if copies == Some(false) {
            return Err(PyBufferError::new_err("memory of a GPU is exported to the host as a copy alone"));
        }
        return export(&Bound::new(py, value.get().on_host(py)?)?, max_version, None, None);
    }
    if copies == Some(true) {
        return export(&Bound::new(py, value.get().copied(py)?)?, max_version, None, None);
    }
    let is_versioned = max_version.is_some_and(|(major, _)| major >= VERSION.major);
    let held = value.get();
    if !is_versioned && !held.is_writable {
        return Err(PyBufferError::new_err("the memory may only be read, which DLPack can say from version 1 on"));
    }
    let Some((code, bits)) = dlpack_type(held.dtype) else {
        return Err(PyBufferError::new_err(format!(
            "DLPack lays out elements of {} in another way",
            held.dtype.name()
        )));
    };
    let mut strides: Vec<i64> = vec![1; held.shape.len()];
    for axis in (1..held.shape.len()).rev() {
        strides[axis - 1] = strides[axis] * held.shape[axis] as i64;
    }
    let shape = held.shape.iter().map(|&size| size as i64).collect();
    held.share();
    let exported = Box::new(Exported { shape, strides, _value: value.clone().unbind() });
    let tensor = DlTensor {
        data: std::ptr::with_exposed_provenance_mut(held.address()),
        device: DlDevice { kind: own.0, number: own.1 },
        ndim: held.shape.len() as i32,
        dtype: DlType { code, bits, lanes: 1 },
        shape: exported.shape.as_ptr().cast_mut(),
        strides: exported.strides.as_ptr().cast_mut(),
        byte_offset: 0,
    };
    let context = Box::into_raw(exported).cast();
    let (pointer, name): (*mut c_void, &CStr) = if is_versioned {
        let flags = if held.is_writable { 0 } else { FLAG_READ_ONLY };
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut VersionedManaged));
        let managed = VersionedManaged { version: VERSION, context, deleter, flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED)
    } else {
        let deleter = Some(delete_plain as unsafe extern "C" fn(*mut PlainManaged));
        (Box::into_raw(Box::new(PlainManaged { tensor, context, deleter })).cast(), PLAIN)
    };
    // SAFETY: the name lives for ever, the pointer until its deleter is called, by the consumer or by the destructor.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destroy_capsule))) }
}

/// Gives a value back. Whoever calls a deleter need not hold the interpreter's lock, and where there is no interpreter any more
/// nothing is left to do.
fn let_go(exported: Box<Exported>) {
    let _ = Python::try_attach(|_| drop(exported));
}

unsafe extern "C" fn delete_plain(managed: *mut PlainManaged) {
    // SAFETY: made by `export` from boxes, and deleted once, as DLPack demands.
    let exported = unsafe {
        let managed = Box::from_raw(managed);
        Box::from_raw(managed.context.cast::<Exported>())
    };
    let_go(exported);
}

unsafe extern "C" fn delete_versioned(managed: *mut VersionedManaged) {
    // SAFETY: as above.
    let exported = unsafe {
        let managed = Box::from_raw(managed);
        Box::from_raw(managed.context.cast::<Exported>())
    };
    let_go(exported);
}

/// Deletes a tensor that nobody took.
unsafe extern "C" fn destroy_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule of `export`; whoever takes the tensor renames it first.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            delete_plain(ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
