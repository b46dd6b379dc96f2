//! The layout of tables is what the runtime's versions share; the numbers below are facts about it, written down again.

use std::mem::{offset_of, size_of};

use super::*;

/// The slots of a table whose first field is a number, by the place of the field.
fn slot(offset: usize) -> usize {
    assert_eq!(offset % size_of::<usize>(), 0);
    offset / size_of::<usize>()
}

#[test]
fn tables_that_the_runtime_takes_have_their_functions_in_their_slots() {
    assert_eq!(slot(offset_of!(OrtEp, get_name)), 1);
    assert_eq!(slot(offset_of!(OrtEp, get_capability)), 2);
    assert_eq!(slot(offset_of!(OrtEp, compile)), 3);
    assert_eq!(slot(offset_of!(OrtEp, release_node_compute_infos)), 4);
    assert_eq!(slot(offset_of!(OrtEp, get_compiled_model_compatibility_info)), 12);
    assert_eq!(slot(offset_of!(OrtEp, get_kernel_registry)), 13);
    assert_eq!(slot(offset_of!(OrtEp, is_concurrent_run_supported)), 14);
    assert_eq!(slot(size_of::<OrtEp>()), 26);

    assert_eq!(slot(offset_of!(OrtEpFactory, get_name)), 1);
    assert_eq!(slot(offset_of!(OrtEpFactory, get_vendor)), 2);
    assert_eq!(slot(offset_of!(OrtEpFactory, get_supported_devices)), 3);
    assert_eq!(slot(offset_of!(OrtEpFactory, create_ep)), 4);
    assert_eq!(slot(offset_of!(OrtEpFactory, release_ep)), 5);
    assert_eq!(slot(offset_of!(OrtEpFactory, get_vendor_id)), 6);
    assert_eq!(slot(offset_of!(OrtEpFactory, get_version)), 7);
    assert_eq!(slot(offset_of!(OrtEpFactory, validate_compatibility)), 8);
    assert_eq!(slot(offset_of!(OrtEpFactory, create_data_transfer)), 11);
    assert_eq!(slot(size_of::<OrtEpFactory>()), 21);

    assert_eq!(slot(offset_of!(OrtNodeComputeInfo, create_state)), 1);
    assert_eq!(slot(offset_of!(OrtNodeComputeInfo, compute)), 2);
    assert_eq!(slot(offset_of!(OrtNodeComputeInfo, release_state)), 3);
    assert_eq!(slot(size_of::<OrtNodeComputeInfo>()), 4);

    assert_eq!(slot(offset_of!(OrtLoopKernelHelper, release)), 1);
    assert_eq!(slot(offset_of!(OrtLoopKernelHelper, join)), 2);
    assert_eq!(slot(size_of::<OrtLoopKernelHelper>()), 3);
}

#[test]
fn no_slot_that_is_read_is_newer_than_the_oldest_version() {
    let (api_slots, ep_slots, editor_slots) = (415, 50, 20);
    assert!(OrtApi::SLOTS.iter().all(|(_, slot)| *slot < api_slots));
    assert!(OrtEpApi::SLOTS.iter().all(|(_, slot)| *slot < ep_slots));
    assert!(OrtModelEditorApi::SLOTS.iter().all(|(_, slot)| *slot < editor_slots));
}

#[test]
fn slots_are_declared_once_and_in_order() {
    for slots in [OrtApi::SLOTS, OrtEpApi::SLOTS, OrtModelEditorApi::SLOTS] {
        assert!(slots.is_sorted_by(|(_, first), (_, second)| first < second));
    }
}
