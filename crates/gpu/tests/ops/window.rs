//! Windows that slide and samples between elements.

use precast_ir::op::{
    CoordinateFn, GridPad, GridSample, NearestFn, Pool, PoolFn, PoolIndices, Resize, ResizeFn, RoiAlign,
};
use precast_tensor::{DType, Dim, Tensor};

use crate::host::{Case, INDIRECT, PLAIN, check, check_none, numbers, of_values};

fn x(dtype: DType, shape: &[usize]) -> Tensor {
    let low = if dtype.is_signed() { -3.0 } else { 0.0 };
    numbers(dtype, shape, 41, low, 5.0)
}

fn dims(sizes: &[i64]) -> Vec<Dim> {
    sizes.iter().map(|&size| Dim::from(size)).collect()
}

/// Shape of x, window, stride, low and high pads, dilation, output.
type Geometry = (Vec<usize>, Vec<usize>, Vec<usize>, Vec<i64>, Vec<i64>, Vec<usize>, Vec<i64>);

fn geometries() -> Vec<Geometry> {
    vec![
        (vec![2, 3, 7], vec![3], vec![2], vec![1], vec![1], vec![1], vec![4]),
        (vec![2, 3, 6, 7], vec![2, 3], vec![2, 1], vec![0, 1], vec![0, 1], vec![1, 1], vec![3, 7]),
        (vec![1, 4, 5, 5], vec![3, 3], vec![2, 2], vec![1, 1], vec![1, 1], vec![2, 1], vec![2, 3]),
        (vec![1, 2, 4, 4, 4], vec![2, 2, 2], vec![2, 2, 2], vec![0; 3], vec![0; 3], vec![1; 3], vec![2, 2, 2]),
        (vec![1, 1, 3, 3], vec![2, 2], vec![2, 2], vec![0, 0], vec![1, 1], vec![1, 1], vec![3, 3]),
        (vec![1, 2, 5, 5], vec![5, 5], vec![1, 1], vec![0, 0], vec![0, 0], vec![1, 1], vec![1, 1]),
        (vec![2, 16, 6, 5], vec![3, 3], vec![2, 2], vec![1, 1], vec![1, 1], vec![1, 1], vec![3, 3]),
        (vec![1, 12, 4, 5], vec![2, 3], vec![1, 1], vec![0, 1], vec![0, 1], vec![1, 1], vec![3, 5]),
        (vec![0, 2, 5], vec![2], vec![1], vec![0], vec![0], vec![1], vec![4]),
    ]
}

#[test]
fn pools() {
    let mut cases = Vec::new();
    for (shape, window, stride, lo, hi, dilation, output) in geometries() {
        let is_rare = |dtype: &DType| !matches!(dtype, DType::F32 | DType::F16);
        let dtypes = [DType::F32, DType::F16, DType::F64, DType::I8, DType::U8, DType::I32];
        for dtype in dtypes.into_iter().filter(|dtype| !is_rare(dtype) || window == [2, 3]) {
            for &func in PoolFn::ALL {
                if func != PoolFn::Max && !dtype.is_float() {
                    continue;
                }
                for (count_pad, p) in [(false, 2), (true, 3)] {
                    let op = Pool {
                        func,
                        window: window.clone(),
                        stride: stride.clone(),
                        pad_lo: dims(&lo),
                        pad_hi: dims(&hi),
                        dilation: dilation.clone(),
                        output: dims(&output),
                        count_pad,
                        p,
                    };
                    cases.push(Case::new(op.clone(), &[x(dtype, &shape)]).with_slack(1e-14));
                    cases.push(Case::new(op, &[x(dtype, &shape)]).with_slack(1e-14).channels_last());
                }
            }
            for column_major in [false, true] {
                let op = PoolIndices {
                    window: window.clone(),
                    stride: stride.clone(),
                    pad_lo: dims(&lo),
                    pad_hi: dims(&hi),
                    dilation: dilation.clone(),
                    output: dims(&output),
                    column_major,
                };
                cases.push(Case::new(op.clone(), &[x(dtype, &shape)]));
                cases.push(Case::new(op, &[x(dtype, &shape)]).channels_last());
            }
        }
    }
    let values = [1.0, f64::NAN, 3.0, f64::NEG_INFINITY, f64::NEG_INFINITY, 2.0, f64::NAN, 5.0, 5.0];
    let op = Pool {
        func: PoolFn::Max,
        window: vec![2],
        stride: vec![1],
        pad_lo: dims(&[0]),
        pad_hi: dims(&[0]),
        dilation: vec![1],
        output: dims(&[8]),
        count_pad: false,
        p: 2,
    };
    cases.push(Case::new(op, &[of_values(DType::F32, &[1, 1, 9], &values)]));
    check(&cases, PLAIN);
    check(&cases[..4], INDIRECT);
}

fn resize(func: ResizeFn, coordinates: CoordinateFn, output: &[i64], scales: &[f64]) -> Resize {
    Resize {
        func,
        coordinates,
        nearest: NearestFn::RoundPreferFloor,
        output: dims(output),
        scales: scales.to_vec(),
        cubic_a: -0.75,
        exclude_outside: false,
        antialias: false,
        roi: [vec![0.0; output.len()], vec![1.0; output.len()]].concat(),
        extrapolation: 0.0,
    }
}

#[test]
fn resizes() {
    let mut cases = Vec::new();
    for &func in ResizeFn::ALL {
        for &coordinates in CoordinateFn::ALL {
            for (output, scales) in [([2, 3, 8, 10], [1.0, 1.0, 2.0, 2.0]), ([2, 3, 3, 2], [1.0, 1.0, 0.75, 0.4])] {
                let op = resize(func, coordinates, &output, &scales);
                cases.push(Case::new(op.clone(), &[x(DType::F32, &[2, 3, 4, 5])]));
                cases.push(Case::new(op.clone(), &[x(DType::F16, &[2, 3, 4, 5])]).channels_last());
                cases.push(Case::new(op, &[x(DType::U8, &[2, 3, 4, 5])]));
            }
        }
        let mut op = resize(func, CoordinateFn::HalfPixel, &[1, 2, 3], &[1.0, 1.0, 0.5]);
        for &nearest in NearestFn::ALL {
            op.nearest = nearest;
            cases.push(Case::new(op.clone(), &[x(DType::F64, &[1, 2, 6])]).with_slack(1e-14));
        }
        if func != ResizeFn::Nearest {
            op.antialias = true;
            cases.push(Case::new(op.clone(), &[x(DType::F32, &[1, 2, 6])]));
            op.exclude_outside = true;
            cases.push(Case::new(op.clone(), &[x(DType::F32, &[1, 2, 6])]));
            cases.push(Case::new(op, &[x(DType::I32, &[1, 2, 6])]));
        }
        let same = resize(func, CoordinateFn::HalfPixel, &[2, 3], &[1.0, 1.0]);
        cases.push(Case::new(same, &[x(DType::F32, &[2, 3])]));
    }
    check(&cases, PLAIN);
    check(&cases[..4], INDIRECT);
    let mut crop = resize(ResizeFn::Linear, CoordinateFn::TfCrop, &[1, 1, 4], &[1.0, 1.0, 1.0]);
    crop.roi = vec![0.0, 0.0, -0.5, 1.0, 1.0, 1.5];
    check_none(&Case::new(crop, &[x(DType::F32, &[1, 1, 4])]));
}

#[test]
fn grid_samples() {
    let mut cases = Vec::new();
    for &func in ResizeFn::ALL {
        for &padding in GridPad::ALL {
            for align_corners in [false, true] {
                let op = GridSample { func, padding, align_corners };
                for (dtype, slack) in [(DType::F32, 1e-5), (DType::F16, 2e-2), (DType::F64, 1e-13)] {
                    let grid = numbers(DType::F32, &[2, 3, 4, 2], 6, -1.7, 1.7);
                    cases.push(Case::new(op.clone(), &[x(dtype, &[2, 3, 5, 6]), grid.clone()]).with_slack(slack));
                    cases.push(
                        Case::new(op.clone(), &[x(dtype, &[2, 3, 5, 6]), grid]).with_slack(slack).channels_last(),
                    );
                }
                let grid = numbers(DType::F32, &[1, 2, 3, 2, 3], 7, -1.7, 1.7);
                cases.push(Case::new(op.clone(), &[x(DType::F32, &[1, 2, 3, 4, 2]), grid]).with_slack(1e-5));
                let grid = of_values(DType::F32, &[1, 4, 1], &[f64::INFINITY, -100.0, 100.0, 0.0]);
                cases.push(Case::new(op, &[x(DType::F32, &[1, 2, 1]), grid]).with_slack(1e-5));
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..2], INDIRECT);
}

#[test]
fn regions() {
    let mut cases = Vec::new();
    for func in [PoolFn::Max, PoolFn::Avg] {
        for half_pixel in [false, true] {
            for sampling_ratio in [0, 2] {
                let op = RoiAlign {
                    func,
                    output_height: 2,
                    output_width: 3,
                    sampling_ratio,
                    spatial_scale: 0.5,
                    half_pixel,
                };
                for (dtype, slack) in [(DType::F32, 1e-5), (DType::F64, 1e-13), (DType::F16, 2e-2)] {
                    let rois = [0.0, 0.0, 7.0, 9.0, 2.5, 1.5, 12.5, 6.5, -4.0, -4.0, 3.0, 3.0, 20.0, 20.0, 30.0, 30.0];
                    let rois = of_values(dtype, &[4, 4], &rois);
                    let batches = of_values(DType::I64, &[4], &[0.0, 1.0, -1.0, 1.0]);
                    let inputs = [x(dtype, &[2, 3, 6, 7]), rois, batches];
                    cases.push(Case::new(op.clone(), &inputs).with_slack(slack));
                    cases.push(Case::new(op.clone(), &inputs).with_slack(slack).channels_last());
                }
            }
        }
    }
    check(&cases, PLAIN);
    check(&cases[..2], INDIRECT);
}
