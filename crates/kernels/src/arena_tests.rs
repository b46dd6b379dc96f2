//! Tests of the arena: what is refused, and that a step sees exactly its slots.

use super::*;

fn arena(offset: usize, bytes: usize) -> Slot {
    Slot { place: Place::Arena { offset }, bytes }
}

fn need(bytes: usize) -> Requirement {
    Requirement { bytes, align: 4 }
}

#[test]
fn a_step_reads_and_writes_its_slots() {
    let requirements = Requirements {
        arena_bytes: 256,
        constants: vec![need(8)],
        inputs: vec![need(8)],
        outputs: vec![need(8), need(4)],
    };
    let input = Slot { place: Place::Input(0), bytes: 8 };
    let constant = Slot { place: Place::Constant(0), bytes: 8 };
    let output = |index, bytes| Slot { place: Place::Output(index), bytes };
    let add = StepSlots::new(vec![input, constant, input], vec![arena(64, 8)], 256).unwrap();
    let copy = StepSlots::new(vec![arena(64, 8)], vec![output(0, 8), output(1, 4)], 256).unwrap();
    let read_back = StepSlots::new(vec![output(0, 8), output(0, 8)], vec![output(1, 4)], 256).unwrap();
    for step in [&add, &copy, &read_back] {
        requirements.admit(step).unwrap();
    }

    let mut memory = Arena::new(256);
    let constants = [AlignedBytes::from_slice(&[10.0_f32, 20.0])];
    let x = [1.0_f32, 2.0];
    let (mut y, mut z) = ([0.0_f32; 2], [0.0_f32]);
    {
        let inputs = [as_bytes(&x)];
        let mut outputs = [as_bytes_mut(&mut y), as_bytes_mut(&mut z)];
        let mut bound = Bound::new(&requirements, &mut memory, &constants, &inputs, &mut outputs).unwrap();
        let mut args = bound.args(&add);
        let (a, b, sum) = (args.read::<f32>(0), args.read::<f32>(1), args.write::<f32>(0));
        (0..2).for_each(|index| sum[index] = a[index] + b[index]);
        let mut args = bound.args(&copy);
        let sum = args.read::<f32>(0);
        let (first, second) = (args.write::<f32>(0), args.write::<f32>(1));
        first.copy_from_slice(sum);
        second[0] = first[1];
        let mut args = bound.args(&read_back);
        let (first, again) = (args.read::<f32>(0), args.read::<f32>(1));
        args.write::<f32>(0)[0] += first[0] + again[0];
    }
    assert_eq!(y, [11.0, 22.0]);
    assert_eq!(z, [44.0]);
}

#[test]
fn overlapping_writes_are_refused() {
    let (a, b) = (arena(0, 65), arena(64, 4));
    let refuse = |reads: Vec<Slot>, writes: Vec<Slot>| StepSlots::new(reads, writes, 128).unwrap_err();
    assert_eq!(refuse(vec![a], vec![b]), ArenaError::Overlap { write: b, other: a });
    assert_eq!(refuse(vec![], vec![a, b]), ArenaError::Overlap { write: b, other: a });
    let output = Slot { place: Place::Output(1), bytes: 4 };
    assert_eq!(refuse(vec![output], vec![output]), ArenaError::Overlap { write: output, other: output });
    assert!(StepSlots::new(vec![a, b, a], vec![], 128).is_ok());
    assert!(StepSlots::new(vec![arena(0, 64)], vec![b], 128).is_ok());
    assert!(StepSlots::new(vec![arena(64, 0)], vec![b], 128).is_ok());
}

#[test]
fn slots_outside_their_buffers_are_refused() {
    let beyond = arena(64, 65);
    assert_eq!(
        StepSlots::new(vec![beyond], vec![], 128).unwrap_err(),
        ArenaError::OutOfBounds { slot: beyond, buffer_bytes: 128 }
    );
    let huge = arena(usize::MAX - 63, usize::MAX);
    assert!(StepSlots::new(vec![huge], vec![], 128).is_err());
    let crooked = arena(4, 4);
    assert_eq!(StepSlots::new(vec![crooked], vec![], 128).unwrap_err(), ArenaError::OffsetNotAligned { slot: crooked });
    let input = Slot { place: Place::Input(0), bytes: 4 };
    assert_eq!(StepSlots::new(vec![], vec![input], 128).unwrap_err(), ArenaError::NotWritable { slot: input });
    let step = StepSlots::new(vec![input], vec![], 128).unwrap();
    let requirements = Requirements { arena_bytes: 128, ..Requirements::default() };
    assert_eq!(requirements.admit(&step).unwrap_err(), ArenaError::NoSuchBuffer { slot: input });
    let requirements = Requirements { inputs: vec![need(3)], ..requirements };
    assert_eq!(requirements.admit(&step).unwrap_err(), ArenaError::OutOfBounds { slot: input, buffer_bytes: 3 });
}

#[test]
fn wrong_buffers_are_refused_when_bound() {
    let requirements = Requirements { arena_bytes: 64, inputs: vec![need(4)], ..Requirements::default() };
    let refuse = |arena_bytes: usize, inputs: &[&[u8]]| {
        let mut memory = Arena::new(arena_bytes);
        Bound::new(&requirements, &mut memory, &[], inputs, &mut []).err()
    };
    let words = [0_u32; 4];
    let bytes = as_bytes(&words);
    assert_eq!(refuse(64, &[&bytes[..4]]), None);
    let (kind, index) = ("input", 0);
    assert_eq!(refuse(64, &[]), Some(ArenaError::BufferCount { kind, expected: 1, actual: 0 }));
    assert_eq!(refuse(64, &[&bytes[..3]]), Some(ArenaError::BufferSize { kind, index, expected: 4, actual: 3 }));
    assert_eq!(refuse(64, &[&bytes[1..9]]), Some(ArenaError::BufferAlignment { kind, index, expected: 4 }));
    assert_eq!(refuse(0, &[bytes]), Some(ArenaError::BufferSize { kind: "arena", index, expected: 64, actual: 0 }));
}

#[test]
#[should_panic(expected = "already taken")]
fn a_write_is_given_out_once() {
    let step = StepSlots::new(vec![], vec![arena(0, 4)], 64).unwrap();
    let requirements = Requirements { arena_bytes: 64, ..Requirements::default() };
    let mut memory = Arena::new(64);
    let mut bound = Bound::new(&requirements, &mut memory, &[], &[], &mut []).unwrap();
    let mut args = bound.args(&step);
    args.write::<f32>(0);
    args.write::<f32>(0);
}

#[test]
fn a_larger_arena_than_bound_panics() {
    let step = StepSlots::new(vec![], vec![arena(64, 4)], 128).unwrap();
    let requirements = Requirements::default();
    let mut memory = Arena::new(64);
    let mut bound = Bound::new(&requirements, &mut memory, &[], &[], &mut []).unwrap();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        bound.args(&step);
    }));
    assert!(result.is_err());
}

#[test]
fn views_need_whole_aligned_elements() {
    let constant = AlignedBytes::from_slice(&[1_u16, 2, 3]);
    assert_eq!(constant.view::<u16>(), Some(&[1, 2, 3][..]));
    assert_eq!(constant.view::<u32>(), None);
    assert_eq!(view::<u16>(&constant.as_bytes()[1..3]), None);
    assert_eq!(view::<f64>(&[]), Some(&[][..]));
    assert_eq!(constant.as_bytes().as_ptr().addr() % ALIGNMENT, 0);
}

#[test]
fn small_and_mapped_bytes_are_zero_until_they_are_filled() {
    for elements in [0, 3, 1 << 18] {
        let bytes = AlignedBytes::filled(elements, |zeros: &mut [u32]| {
            assert!(zeros.iter().all(|&zero| zero == 0));
            zeros.fill(7);
        });
        assert!(bytes.as_bytes().as_ptr().addr().is_multiple_of(ALIGNMENT));
        assert_eq!(bytes.view::<u32>().unwrap(), vec![7; elements]);
    }
}

#[test]
fn bytes_come_together_from_their_parts() {
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(AlignedBytes::from_parts(256, bytes.chunks(100)).as_bytes(), bytes);
    let shared = AlignedBytes::from_slice(&bytes).into_bytes();
    assert!(AlignedBytes::try_from_bytes(&shared).is_some());
    assert!(AlignedBytes::try_from_bytes(&shared.slice(1..)).is_none());
}
