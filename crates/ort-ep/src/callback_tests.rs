//! Every callback with a panic inside: what crosses to the runtime is a status, and the ones without a status are silent.
//! The runtime is a table of our own.
#![allow(clippy::unwrap_used, reason = "the whole file is a test")]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use crate::abi::{
    API_VERSION_MAX, OrtApiBase, OrtEp, OrtEpFactory, OrtKeyValuePairs, OrtNodeComputeInfo, OrtSessionOptions,
    OrtStatus, Slot,
};
use crate::{CreateEpFactories, ReleaseEpFactory};

thread_local! {
    /// The callback that panics.
    static FAULT: RefCell<String> = const { RefCell::new(String::new()) };
    /// Statuses that are not released.
    static STATUSES: Cell<i64> = const { Cell::new(0) };
    /// Version of the runtime.
    static VERSION: Cell<&'static CStr> = const { Cell::new(c"1.31.0") };
}

/// Panics where a test asked for it.
pub(crate) fn strike(place: &str) {
    assert!(FAULT.with_borrow(|fault| fault != place), "struck");
}

unsafe extern "C" fn create_status(code: c_int, message: *const c_char) -> *mut OrtStatus {
    STATUSES.set(STATUSES.get() + 1);
    // SAFETY: the text ends in a zero.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    Box::into_raw(Box::new(CString::new(format!("{code}: {text}")).unwrap())).cast()
}

unsafe extern "C" fn get_error_message(status: *const OrtStatus) -> *const c_char {
    // SAFETY: statuses are texts of `create_status`.
    unsafe { &*status.cast::<CString>() }.as_ptr()
}

unsafe extern "C" fn release_status(status: *mut OrtStatus) {
    STATUSES.set(STATUSES.get() - 1);
    // SAFETY: statuses are texts of `create_status`.
    drop(unsafe { Box::from_raw(status.cast::<CString>()) });
}

unsafe extern "C" fn no_pairs(_options: *const OrtSessionOptions, pairs: *mut *mut OrtKeyValuePairs) -> *mut OrtStatus {
    // SAFETY: the place is ours to write.
    unsafe { *pairs = null_mut() };
    null_mut()
}

unsafe extern "C" fn no_entries(
    _pairs: *const OrtKeyValuePairs,
    _keys: *mut *const *const c_char,
    _values: *mut *const *const c_char,
    count: *mut usize,
) {
    // SAFETY: the place is ours to write.
    unsafe { *count = 0 };
}

unsafe extern "C" fn release_pairs(_pairs: *mut OrtKeyValuePairs) {}

unsafe extern "C" fn no_table() -> *const c_void {
    null()
}

unsafe extern "C" fn get_api(version: u32) -> *const c_void {
    assert!(version <= API_VERSION_MAX);
    let mut slots: Vec<Slot> = vec![null(); 425];
    slots[0] = create_status as *const c_void;
    slots[2] = get_error_message as *const c_void;
    slots[93] = release_status as *const c_void;
    slots[291] = no_table as *const c_void;
    slots[298] = no_entries as *const c_void;
    slots[300] = release_pairs as *const c_void;
    slots[317] = no_table as *const c_void;
    slots[379] = no_pairs as *const c_void;
    slots.leak().as_ptr().cast()
}

unsafe extern "C" fn get_version_string() -> *const c_char {
    VERSION.get().as_ptr()
}

const BASE: OrtApiBase = OrtApiBase { get_api, get_version_string };

/// What a status says; it is released.
fn text_of(status: *mut OrtStatus) -> String {
    assert!(!status.is_null(), "no status");
    // SAFETY: statuses are texts of `create_status`.
    let text = unsafe { CStr::from_ptr(get_error_message(status)) }.to_string_lossy().into_owned();
    // SAFETY: it is not used again.
    unsafe { release_status(status) };
    text
}

fn create_factory() -> Result<*mut OrtEpFactory, String> {
    let (mut factory, mut count) = (null_mut(), 0);
    // SAFETY: there is room for one factory.
    let status = unsafe { CreateEpFactories(c"precast".as_ptr(), &BASE, null(), &mut factory, 1, &mut count) };
    if status.is_null() { Ok(factory) } else { Err(text_of(status)) }
}

fn with_fault<T>(place: &str, call: impl FnOnce() -> T) -> T {
    FAULT.set(place.to_string());
    let result = call();
    FAULT.set(String::new());
    result
}

fn struck(place: &str) -> String {
    format!("1: precast: a fault of ours in {place}: struck")
}

#[test]
fn a_panic_in_a_callback_is_a_status_or_nothing() {
    assert_eq!(with_fault("CreateEpFactories", create_factory), Err(struck("CreateEpFactories")));
    let table = create_factory().unwrap();
    // SAFETY: the factory lives until it is released below.
    let factory = unsafe { &*table };
    let mut count = 0;
    let devices = factory.get_supported_devices.unwrap();
    // SAFETY: the fault comes before anything is read.
    let status = with_fault("GetSupportedDevices", || unsafe { devices(table, null(), 0, null_mut(), 0, &mut count) });
    assert_eq!(text_of(status), struck("GetSupportedDevices"));

    let mut ep: *mut OrtEp = null_mut();
    let create = factory.create_ep.unwrap();
    let mut create_ep = || {
        // SAFETY: the runtime of this test gives no options.
        unsafe { create(table, null(), null(), 0, null(), null(), &mut ep) }
    };
    assert_eq!(text_of(with_fault("CreateEp", &mut create_ep)), struck("CreateEp"));
    assert!(create_ep().is_null());
    // SAFETY: the provider lives until it is released below.
    let provider = unsafe { &*ep };
    let capability = provider.get_capability.unwrap();
    // SAFETY: the fault comes before anything is read.
    let status = with_fault("GetCapability", || unsafe { capability(ep, null(), null_mut()) });
    assert_eq!(text_of(status), struck("GetCapability"));
    let compile = provider.compile.unwrap();
    // SAFETY: as above.
    let status = with_fault("Compile", || unsafe { compile(ep, null(), null(), 1, null_mut(), null_mut()) });
    assert_eq!(text_of(status), struck("Compile"));
    let release_infos = provider.release_node_compute_infos.unwrap();
    let mut infos: [*mut OrtNodeComputeInfo; 1] = [null_mut()];
    // SAFETY: as above.
    with_fault("ReleaseNodeComputeInfos", || unsafe { release_infos(ep, infos.as_mut_ptr(), 1) });
    let release_ep = factory.release_ep.unwrap();
    // SAFETY: the fault comes before the provider is released.
    with_fault("ReleaseEp", || unsafe { release_ep(table, ep) });
    // SAFETY: it is not used again.
    unsafe { release_ep(table, ep) };
    // SAFETY: it is not used again.
    let status = with_fault("ReleaseEpFactory", || unsafe { ReleaseEpFactory(table) });
    assert_eq!(text_of(status), struck("ReleaseEpFactory"));
    assert_eq!(STATUSES.get(), 0, "statuses that nobody released");
}

#[test]
fn a_runtime_that_is_too_old_is_told_so_in_one_sentence() {
    VERSION.set(c"1.23.2");
    let text = create_factory().err().unwrap();
    assert_eq!(text, "9: precast needs onnxruntime 1.24 or later; this is 1.23.2");
    assert_eq!(STATUSES.get(), 0, "statuses that nobody released");
}
