//! Strided copies against single elements, and the views that are refused.

use super::*;
use crate::test_data::{Lcg, for_each_exec};

/// The same copy, one element at a time.
fn naive(copy: &Case, src: &[u8], dst: &mut [u8]) {
    let count: usize = copy.extents.iter().product();
    for flat in 0..count {
        let (mut rest, mut from, mut to) = (flat, copy.src_offset as isize, copy.dst_offset as isize);
        for d in (0..copy.extents.len()).rev() {
            let index = (rest % copy.extents[d]) as isize;
            rest /= copy.extents[d];
            from += index * copy.src_strides[d];
            to += index * copy.dst_strides[d];
        }
        let (from, to, bytes) = (from as usize * copy.bytes, to as usize * copy.bytes, copy.bytes);
        dst[to..to + bytes].copy_from_slice(&src[from..from + bytes]);
    }
}

#[derive(Debug)]
struct Case {
    bytes: usize,
    extents: Vec<usize>,
    src_offset: usize,
    src_strides: Vec<isize>,
    dst_offset: usize,
    dst_strides: Vec<isize>,
}

fn check(case: &Case, src_len: usize, dst_len: usize, lcg: &mut Lcg) {
    let copy = StridedCopy::new(
        case.bytes,
        &case.extents,
        case.src_offset,
        &case.src_strides,
        case.dst_offset,
        &case.dst_strides,
        src_len,
        dst_len,
    )
    .unwrap();
    let src = lcg.bytes(src_len * case.bytes + 1);
    let mut expected = vec![7; dst_len * case.bytes];
    naive(case, &src[1..], &mut expected);
    for_each_exec(|exec| {
        let mut actual = vec![7; dst_len * case.bytes];
        copy.run(exec, &src[1..], &mut actual);
        assert!(actual == expected, "{case:?} as {copy:?}");
    });
}

/// A permutation of a dense array, with some source dimensions reversed or broadcast.
fn permuted(extents: &[usize], order: &[usize], bytes: usize, lcg: &mut Lcg) -> (Case, usize, usize) {
    let dense: Vec<usize> = (0..extents.len()).map(|d| extents[d + 1..].iter().product()).collect();
    let count: usize = extents.iter().product();
    let mut case = Case {
        bytes,
        extents: order.iter().map(|&d| extents[d]).collect(),
        src_offset: 0,
        src_strides: Vec::new(),
        dst_offset: 3,
        dst_strides: Vec::new(),
    };
    case.dst_strides = (0..order.len()).map(|d| case.extents[d + 1..].iter().product::<usize>() as isize).collect();
    for &d in order {
        match lcg.below(6) {
            0 => case.src_strides.push(0),
            1 => {
                case.src_offset += (extents[d].saturating_sub(1)) * dense[d];
                case.src_strides.push(-(dense[d] as isize));
            }
            _ => case.src_strides.push(dense[d] as isize),
        }
    }
    (case, count.max(1), count + 5)
}

#[test]
fn random_permutations_match_single_elements() {
    let mut lcg = Lcg::new(5);
    for round in 0..150 {
        let rank = 1 + lcg.below(5);
        let extents: Vec<usize> = (0..rank).map(|_| lcg.below(if rank < 3 { 90 } else { 11 })).collect();
        let mut order: Vec<usize> = (0..rank).collect();
        for d in (1..rank).rev() {
            order.swap(d, lcg.below(d + 1));
        }
        let bytes = [1, 2, 4, 8][round % 4];
        let (case, src_len, dst_len) = permuted(&extents, &order, bytes, &mut lcg);
        check(&case, src_len, dst_len, &mut lcg);
    }
}

#[test]
fn large_transposes_match_single_elements() {
    let mut lcg = Lcg::new(6);
    for (extents, order) in [
        (vec![129, 257], vec![1, 0]),
        (vec![2, 64, 3, 100], vec![0, 2, 3, 1]),
        (vec![300, 3], vec![1, 0]),
        (vec![3, 300], vec![1, 0]),
        (vec![4, 50, 6, 32], vec![0, 2, 1, 3]),
    ] {
        let (mut case, src_len, dst_len) = permuted(&extents, &order, 4, &mut lcg);
        let dense: Vec<usize> = (0..extents.len()).map(|d| extents[d + 1..].iter().product()).collect();
        case.src_offset = 0;
        case.src_strides = order.iter().map(|&d| dense[d] as isize).collect();
        check(&case, src_len, dst_len, &mut lcg);
    }
}

#[test]
fn what_reaches_outside_is_refused() {
    let error = |extents: &[usize], src: &[isize], dst: &[isize], src_len, dst_len| {
        StridedCopy::new(4, extents, 0, src, 0, dst, src_len, dst_len).unwrap_err().to_string()
    };
    assert_eq!(error(&[3], &[2], &[1], 4, 3), "the source view reaches from 0 to 4 of 4 elements");
    assert_eq!(error(&[3], &[-1], &[1], 4, 3), "the source view reaches from -2 to 0 of 4 elements");
    assert_eq!(error(&[3], &[1], &[1], 4, 2), "the target view reaches from 0 to 2 of 2 elements");
    assert_eq!(error(&[3, 2], &[1, 1], &[1, 1], 9, 9), "two elements may go to the same place");
    assert_eq!(error(&[3], &[1], &[0], 9, 9), "two elements may go to the same place");
    assert_eq!(error(&[3], &[1, 1], &[1], 9, 9), "1 extents with 2 source and 1 target strides");
    let far = error(&[usize::MAX, 2], &[isize::MAX, 1], &[1, 1], 9, 9);
    assert!(far.starts_with("the source view reaches"), "{far}");
}

#[test]
fn nothing_is_copied_for_an_empty_extent() {
    let copy = StridedCopy::new(4, &[0, 5], 100, &[1, 1], 100, &[0, 0], 0, 0).unwrap();
    for_each_exec(|exec| copy.run(exec, &[], &mut []));
}

#[test]
fn fills_repeat_their_pattern() {
    for_each_exec(|exec| {
        for pattern in [&[1_u8][..], &[1, 2], &[1, 2, 3], &[1, 2, 3, 4], &[1, 2, 3, 4, 5, 6, 7, 8]] {
            for count in [0, 1, 7, 30_000] {
                let mut actual = vec![0; pattern.len() * count];
                fill(exec, &mut actual, pattern);
                assert!(actual == pattern.repeat(count));
            }
        }
    });
}
