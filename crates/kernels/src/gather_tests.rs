//! Gathers and scatters against index arithmetic.

use super::*;
use crate::test_data::{Lcg, floats_of, for_each_exec, to_bytes};

#[test]
fn rows_come_in_the_order_of_their_indices() {
    let mut lcg = Lcg::new(61);
    for (outer, axis, inner, bytes) in [(1, 5, 1, 4), (3, 7, 33, 4), (2, 1000, 3, 8), (4, 2, 5, 1), (2, 3, 0, 4)] {
        let src = lcg.bytes(outer * axis * inner * bytes);
        let count = 1 + lcg.below(200);
        let wide: Vec<i64> = (0..count).map(|_| lcg.below(2 * axis) as i64 - axis as i64).collect();
        let narrow: Vec<i32> = wide.iter().map(|&index| index as i32).collect();
        let row = inner * bytes;
        let mut expected = Vec::new();
        for o in 0..outer {
            for &index in &wide {
                let at = o * axis + index.rem_euclid(axis as i64) as usize;
                expected.extend_from_slice(&src[at * row..][..row]);
            }
        }
        for_each_exec(|exec| {
            let mut dst = vec![0; expected.len()];
            gather(exec, outer, axis, row, &src, Indices::I64(&wide), &mut dst).unwrap();
            assert!(dst == expected);
            dst.fill(0);
            gather(exec, outer, axis, row, &src, Indices::I32(&narrow), &mut dst).unwrap();
            assert!(dst == expected);
        });
    }
}

#[test]
fn an_index_out_of_range_is_named() {
    for_each_exec(|exec| {
        for (index, extent) in [(3_i64, 3), (-4, 3), (i64::MIN, 3), (i64::MAX, 3), (0, 0)] {
            let indices = [if extent == 0 { 0 } else { 1 }, index];
            let position = usize::from(extent != 0);
            let src = vec![1; extent];
            let mut dst = [9; 2];
            let error = gather(exec, 1, extent, 1, &src, Indices::I64(&indices), &mut dst).unwrap_err();
            assert_eq!(error, IndexError { position, index, extent });
            assert_eq!(dst, [9; 2]);
            let shape = TupleShape { batches: 1, tuples: 2, extents: &[extent], inner: 1 };
            assert_eq!(gather_nd(exec, 1, shape, &src, Indices::I64(&indices), &mut dst), Err(error));
            let mut target = src.clone();
            let kernel = ScatterKernel::Copy(1);
            assert_eq!(scatter_nd(exec, kernel, shape, Indices::I64(&indices), &[5; 2], &mut target), Err(error));
            assert_eq!(target, src);
            let found = scatter_elements(kernel, &[extent], &[2], 0, Indices::I64(&indices), &[5; 2], &mut target);
            assert_eq!(found, Err(error));
            let found = gather_elements(exec, 1, &[extent], &[2], 0, &src, Indices::I64(&indices), &mut dst);
            assert_eq!(found, Err(error));
        }
    });
    let error = IndexError { position: 1, index: -4, extent: 3 };
    assert_eq!(error.to_string(), "index -4 at position 1 is out of range for an axis of 3");
}

#[test]
fn elements_are_gathered_and_scattered_along_any_axis() {
    let mut lcg = Lcg::new(62);
    for (data_shape, index_shape, axis) in [
        (vec![4, 5], vec![3, 5], 0),
        (vec![4, 5], vec![4, 9], 1),
        (vec![3, 4, 5], vec![2, 7, 5], 1),
        (vec![6], vec![20], 0),
        (vec![3, 2], vec![0, 2], 0),
        (vec![50, 40, 30], vec![50, 40, 30], 2),
    ] {
        let size: usize = data_shape.iter().product();
        let count: usize = index_shape.iter().product();
        let data: Vec<f32> = (0..size).map(|x| x as f32).collect();
        let extent = data_shape[axis];
        let indices: Vec<i64> = (0..count).map(|_| lcg.below(2 * extent) as i64 - extent as i64).collect();
        let offset = |position: usize| {
            let (mut rest, mut at, mut stride) = (position, 0, 1);
            for d in (0..data_shape.len()).rev() {
                let along = indices[position].rem_euclid(extent as i64) as usize;
                at += stride * if d == axis { along } else { rest % index_shape[d] };
                rest /= index_shape[d];
                stride *= data_shape[d];
            }
            at
        };
        let gathered: Vec<f32> = (0..count).map(|position| data[offset(position)]).collect();
        let updates = lcg.floats(count);
        let (mut replaced, mut added) = (data.clone(), data.clone());
        for position in 0..count {
            replaced[offset(position)] = updates[position];
            added[offset(position)] += updates[position];
        }
        for_each_exec(|exec| {
            let indices = Indices::I64(&indices);
            let mut dst = vec![0; count * 4];
            gather_elements(exec, 4, &data_shape, &index_shape, axis, &to_bytes(&data), indices, &mut dst).unwrap();
            assert_eq!(floats_of(&dst), gathered);
        });
        for (kernel, expected) in
            [(ScatterKernel::Copy(4), &replaced), (ScatterKernel::F32(ScatterReduction::Add), &added)]
        {
            let mut dst = to_bytes(&data);
            let indices = Indices::I64(&indices);
            scatter_elements(kernel, &data_shape, &index_shape, axis, indices, &to_bytes(&updates), &mut dst).unwrap();
            assert_eq!(&floats_of(&dst), expected);
        }
    }
}

#[test]
fn tuples_name_slices() {
    let mut lcg = Lcg::new(63);
    for (batches, tuples, extents, inner) in [
        (1, 6, vec![4, 5], 3),
        (3, 2, vec![7], 1),
        (2, 3, vec![2, 3, 4], 1),
        (1, 50, vec![8], 2000),
        (1, 0, vec![3], 2),
    ] {
        let rows: usize = extents.iter().product();
        let src = lcg.bytes(batches * rows * inner * 2);
        let shape = TupleShape { batches, tuples, extents: &extents, inner };
        let indices: Vec<i32> = (0..batches * tuples)
            .flat_map(|_| extents.iter().map(|&e| lcg.below(2 * e) as i32 - e as i32).collect::<Vec<_>>())
            .collect();
        let row_of = |tuple: usize| {
            let members = &indices[tuple * extents.len()..][..extents.len()];
            let row = members
                .iter()
                .zip(&extents)
                .fold(0, |row, (&index, &extent)| row * extent + index.rem_euclid(extent as i32) as usize);
            tuple / tuples * rows + row
        };
        let updates = lcg.bytes(batches * tuples * inner * 2);
        let mut gathered = Vec::new();
        let mut scattered = src.clone();
        for tuple in 0..batches * tuples {
            let at = row_of(tuple) * inner * 2;
            gathered.extend_from_slice(&src[at..at + inner * 2]);
            scattered[at..at + inner * 2].copy_from_slice(&updates[tuple * inner * 2..][..inner * 2]);
        }
        for_each_exec(|exec| {
            let indices = Indices::I32(&indices);
            let mut dst = vec![0; gathered.len()];
            gather_nd(exec, 2, shape, &src, indices, &mut dst).unwrap();
            assert!(dst == gathered);
            let mut dst = src.clone();
            scatter_nd(exec, ScatterKernel::Copy(2), shape, indices, &updates, &mut dst).unwrap();
            assert!(dst == scattered);
        });
    }
}

#[test]
fn reductions_join_repeated_indices_in_order() {
    for_each_exec(|exec| {
        let shape = TupleShape { batches: 1, tuples: 3, extents: &[2], inner: 1 };
        let indices = Indices::I64(&[1, 1, -1]);
        let run = |kernel, data: &[u8], updates: &[u8]| {
            let mut dst = data.to_vec();
            scatter_nd(exec, kernel, shape, indices, updates, &mut dst).unwrap();
            dst
        };
        let (data, updates) = (to_bytes(&[10_i64, 3]), to_bytes(&[2_i64, 7, -5]));
        for (reduction, expected) in [
            (ScatterReduction::Add, 7),
            (ScatterReduction::Mul, -210),
            (ScatterReduction::Min, -5),
            (ScatterReduction::Max, 7),
        ] {
            assert_eq!(run(ScatterKernel::I64(reduction), &data, &updates), to_bytes(&[10_i64, expected]));
        }
        let narrow =
            run(ScatterKernel::I32(ScatterReduction::Add), &to_bytes(&[1_i32, i32::MAX]), &to_bytes(&[1, 0, 0]));
        assert_eq!(narrow, to_bytes(&[1, i32::MIN]));
        let nan = run(
            ScatterKernel::F32(ScatterReduction::Max),
            &to_bytes(&[1.0_f32, 1.0]),
            &to_bytes(&[f32::NAN, 2.0, 3.0]),
        );
        assert!(floats_of(&nan)[1].is_nan());
    });
}
